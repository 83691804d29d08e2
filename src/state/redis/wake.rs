//! Change announcements between replicas by pub/sub.
//!
//! They only save time: a message may be lost or repeated, and its receiver reads the changed state
//! itself.

use std::time::Duration;

use futures_util::StreamExt;
use redis::{
    RedisError,
    aio::{PubSubSink, PubSubStream},
};
use tokio::time::{sleep, timeout};

use super::{client::Redis, link::CALL_TIMEOUT};

/// The channel name, behind the prefix of all keys.
const CHANNEL: &str = "wake";

/// Publishes a text to all subscribed replicas, this one included.
pub(crate) async fn publish(redis: &Redis, text: &str) {
    let mut command = redis::cmd("PUBLISH");
    command.arg(redis.key(CHANNEL)).arg(text);
    redis.send(command).await;
}

/// Calls `on_message` with each text, and with none whenever messages may have been lost. Runs for
/// ever, on a separate connection.
pub(crate) async fn listen(redis: &Redis, on_message: impl Fn(Option<&str>)) {
    let mut is_logged = false;
    loop {
        match timeout(CALL_TIMEOUT * 3, subscribe(redis)).await {
            Ok(Ok(connection)) => {
                on_message(None);
                receive(redis, connection, &on_message).await;
            }
            Ok(Err(error)) if error.code() == Some("NOPERM") && !is_logged => {
                is_logged = true;
                let why = error.detail().unwrap_or_default();
                tracing::warn!(
                    why,
                    "redis.url: its user may not subscribe: changes are known a moment later"
                );
            }
            Ok(Err(_)) | Err(_) => {}
        }
        sleep(RETRY_DELAY).await;
    }
}

async fn subscribe(redis: &Redis) -> Result<(PubSubSink, PubSubStream), RedisError> {
    let (mut sink, stream) = redis.client().get_async_pubsub().await?.split();
    sink.subscribe(redis.key(CHANNEL)).await?;
    Ok((sink, stream))
}

/// Receives messages until the connection breaks or stops answering.
async fn receive(
    redis: &Redis,
    (mut sink, mut stream): (PubSubSink, PubSubStream),
    on_message: &impl Fn(Option<&str>),
) {
    loop {
        match timeout(IDLE_TIMEOUT, stream.next()).await {
            Ok(Some(message)) => {
                let text: Option<String> = message.get_payload().ok();
                on_message(text.as_deref());
            }
            Ok(None) => return,
            Err(_) => {
                // Subscribing again changes nothing, and has a reply.
                let reply = timeout(CALL_TIMEOUT, sink.subscribe(redis.key(CHANNEL))).await;
                if !matches!(reply, Ok(Ok(()))) {
                    return;
                }
            }
        }
    }
}

/// The idle time after which the connection is probed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);
/// The delay between attempts to connect.
const RETRY_DELAY: Duration = Duration::from_secs(1);
