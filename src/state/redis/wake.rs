//! What replicas tell each other by pub/sub: that something changed in a store that they all read.
//!
//! Only to be fast. A message may be lost, and come twice; what it says is looked up elsewhere.

use std::time::Duration;

use futures_util::StreamExt;
use redis::{
    RedisError,
    aio::{PubSubSink, PubSubStream},
};
use tokio::time::{sleep, timeout};

use super::{client::Redis, link::PATIENCE};

/// The channel, behind the prefix of all keys.
const CHANNEL: &str = "wake";

/// Tells all replicas that listen, this one among them.
pub(crate) async fn tell(redis: &Redis, text: &str) {
    let mut command = redis::cmd("PUBLISH");
    command.arg(redis.key(CHANNEL)).arg(text);
    redis.tell(command).await;
}

/// Calls `heard` with each text that a replica told, and with none whenever some may have been
/// missed. Goes on for ever, over a connection of its own.
pub(crate) async fn listen(redis: &Redis, heard: impl Fn(Option<&str>)) {
    let mut is_said = false;
    loop {
        match timeout(PATIENCE * 3, subscribe(redis)).await {
            Ok(Ok(connection)) => {
                heard(None);
                hear(redis, connection, &heard).await;
            }
            Ok(Err(error)) if error.code() == Some("NOPERM") && !is_said => {
                is_said = true;
                let why = error.detail().unwrap_or_default();
                tracing::warn!(
                    why,
                    "redis.url: its user may not subscribe: changes are known a moment later"
                );
            }
            Ok(Err(_)) | Err(_) => {}
        }
        sleep(AGAIN).await;
    }
}

async fn subscribe(redis: &Redis) -> Result<(PubSubSink, PubSubStream), RedisError> {
    let (mut sink, stream) = redis.client().get_async_pubsub().await?.split();
    sink.subscribe(redis.key(CHANNEL)).await?;
    Ok((sink, stream))
}

/// Until the connection breaks, or does not answer.
async fn hear(
    redis: &Redis,
    (mut sink, mut stream): (PubSubSink, PubSubStream),
    heard: &impl Fn(Option<&str>),
) {
    loop {
        match timeout(SILENCE, stream.next()).await {
            Ok(Some(message)) => {
                let text: Option<String> = message.get_payload().ok();
                heard(text.as_deref());
            }
            Ok(None) => return,
            Err(_) => {
                // The same again changes nothing, and has an answer.
                let asked = timeout(PATIENCE, sink.subscribe(redis.key(CHANNEL))).await;
                if !matches!(asked, Ok(Ok(()))) {
                    return;
                }
            }
        }
    }
}

/// Silence after which the connection is asked for a sign.
const SILENCE: Duration = Duration::from_secs(5);
/// Between two attempts to connect.
const AGAIN: Duration = Duration::from_secs(1);
