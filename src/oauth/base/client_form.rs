//! Requests of the gateway to token endpoints of others, with its credentials as their client.
//!
//! Not here: the endpoints, and what their answers mean (`providers`, `upstreams`).

use base64::{Engine, engine::general_purpose::STANDARD};
use http::{
    HeaderValue,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE},
};
use url::form_urlencoded::{Serializer, byte_serialize};

use crate::base::Secret;

/// The gateway as a client of another authorization server.
pub(crate) struct ClientAt<'c> {
    /// Its client ID.
    pub(crate) id: &'c str,
    /// Its secret; none of a public client.
    pub(crate) secret: Option<&'c Secret>,
    /// Whether the server takes Basic.
    pub(crate) is_basic: bool,
}

impl ClientAt<'_> {
    /// A form with its credentials (RFC 6749, section 2.3.1); none for what is no URL.
    pub(crate) fn form(&self, url: &str, form: &[(&str, &str)]) -> Option<http::Request<Vec<u8>>> {
        let mut content = Serializer::new(String::new());
        content.extend_pairs(form);
        let mut request = http::Request::post(url)
            .header(ACCEPT, "application/json")
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded");
        match self.secret {
            Some(secret) if self.is_basic => {
                let encoded = |text: &str| byte_serialize(text.as_bytes()).collect::<String>();
                let pair = format!("{}:{}", encoded(self.id), encoded(secret.expose()));
                let basic = format!("Basic {}", STANDARD.encode(pair));
                let mut basic = HeaderValue::try_from(basic).ok()?;
                basic.set_sensitive(true);
                request = request.header(AUTHORIZATION, basic);
            }
            secret => {
                content.append_pair("client_id", self.id);
                if let Some(secret) = secret {
                    content.append_pair("client_secret", secret.expose());
                }
            }
        }
        request.body(content.finish().into_bytes()).ok()
    }
}
