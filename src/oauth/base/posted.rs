//! Request parameters in the body of a POST.
//!
//! Not here: their syntax (`form`).

use axum::{body::Body, extract::Request};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, header::CONTENT_TYPE, request::Parts};
use http_body_util::{BodyExt, Limited};

use super::form::{Form, FormError};
use super::refusal::{BASIC_CHALLENGE, OauthRefusal, RefusalCode};

impl From<FormError> for OauthRefusal {
    fn from(FormError(what): FormError) -> Self {
        Self::new(RefusalCode::InvalidRequest, what)
    }
}

impl Form {
    /// Returns the parameter, or a refusal with the text `what`.
    pub(crate) fn need(&self, name: &str, what: &'static str) -> Result<&str, OauthRefusal> {
        self.get(name)
            .ok_or(OauthRefusal::new(RefusalCode::InvalidRequest, what))
    }
}

/// Reads the parameters in the body of a POST to an endpoint for clients. The query must be empty,
/// because no secret may be accepted from it (RFC 6749, section 2.3.1).
pub(crate) async fn posted(request: Request) -> Result<(Parts, Form), OauthRefusal> {
    let (head, body) = request.into_parts();
    check_query(&head)?;
    if !is_form(&head.headers) {
        let what = "the body is not application/x-www-form-urlencoded";
        return Err(OauthRefusal::new(RefusalCode::InvalidRequest, what));
    }
    let body = collected(body, FORM_MAX).await?;
    let text = std::str::from_utf8(&body).map_err(|_| FormError("the body is not UTF-8"))?;
    let form = Form::parse(text)?;
    // Several resources are a separate error (RFC 8707, section 2).
    if form.repeated(&["resource"]).is_some() {
        return Err(FormError("a parameter is repeated").into());
    }
    Ok((head, form))
}

/// Refuses a POST with parameters in its query.
pub(crate) fn check_query(head: &Parts) -> Result<(), OauthRefusal> {
    let query = head.uri.query().unwrap_or_default();
    if query.is_empty() {
        return Ok(());
    }
    let form = Form::parse(query)?;
    let is_proof = |name: &&str| form.count(name) > 0;
    if ["client_secret", "client_assertion"].iter().any(is_proof) {
        let what = "a proof in the query proves nothing";
        let refusal = OauthRefusal::new(RefusalCode::InvalidClient, what);
        return Err(refusal.challenged(BASIC_CHALLENGE));
    }
    let what = "parameters belong in the body, not in the query";
    Err(OauthRefusal::new(RefusalCode::InvalidRequest, what))
}

/// Collects a body of at most `max` bytes.
pub(crate) async fn collected(body: Body, max: usize) -> Result<Bytes, OauthRefusal> {
    let mut body = Limited::new(body, max);
    // Parts are copied as they arrive: each would keep what it was read into, and they may be of one byte.
    let mut all = BytesMut::new();
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => all.extend_from_slice(frame.data_ref().map_or(&[], |data| data)),
            Err(error) if error.is::<http_body_util::LengthLimitError>() => {
                let what = "the body is too long";
                return Err(OauthRefusal::new(RefusalCode::TooLarge, what));
            }
            // The gate replaces this response with one that names the cause.
            Err(_) => return Err(FormError("the body did not come whole").into()),
        }
    }
    Ok(all.freeze())
}

pub(crate) fn is_form(headers: &HeaderMap) -> bool {
    let kind = headers
        .get(CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok());
    let kind = kind.and_then(|kind| kind.split(';').next()).unwrap_or("");
    kind.trim()
        .eq_ignore_ascii_case("application/x-www-form-urlencoded")
}

/// Maximum size of a form in bytes; the longest useful parameter is an assertion.
const FORM_MAX: usize = 64 << 10;
