//! Attempts of clients to be let in, step by step, for operators who want to know why one did not get in.
//!
//! The PKCE challenge is new with each attempt and comes back as its verifier, so that it names the attempt from
//! the authorization request to the token, at every replica. Not here: the rows (`database::oauth`).

use std::{net::IpAddr, sync::OnceLock};

use super::{authorization_server::AuthorizationServer, state::OauthState};
use crate::{
    base::{Sha256, hex},
    database::oauth::Step,
    oauth::base::{Form, OauthRefusal, throttle::account},
};

/// What happened in a step of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepKind {
    /// A client registered itself.
    Registered,
    /// The log-in page was shown.
    AskedToLogIn,
    /// A wrong password, or a person who may not log in.
    LogInFailed,
    /// The person was sent to an identity provider.
    SentToProvider,
    /// The person is logged in.
    LoggedIn,
    /// The consent page was shown.
    AskedToConsent,
    /// The client got a code.
    CodeSent,
    /// The client got a token.
    TokenIssued,
    /// A request was refused.
    Refused,
}

impl StepKind {
    const fn name(self) -> &'static str {
        match self {
            Self::Registered => "registered",
            Self::AskedToLogIn => "asked_to_log_in",
            Self::LogInFailed => "log_in_failed",
            Self::SentToProvider => "sent_to_provider",
            Self::LoggedIn => "logged_in",
            Self::AskedToConsent => "asked_to_consent",
            Self::CodeSent => "code_sent",
            Self::TokenIssued => "token_issued",
            Self::Refused => "refused",
        }
    }
}

/// The attempt that a request belongs to, as far as the request has shown it.
#[derive(Default)]
pub(crate) struct Attempt {
    id: OnceLock<String>,
    client_id: OnceLock<String>,
    client: OnceLock<String>,
    server: OnceLock<String>,
    subject: OnceLock<String>,
    detail: OnceLock<String>,
}

impl Attempt {
    /// Learns of the parameters of an authorization request, which may be wrong in any way.
    pub(crate) fn asked(&self, parameters: &Form) {
        if let Some(challenge) = parameters.get("code_challenge") {
            self.named_by(challenge);
        }
        if let Some(id) = parameters.get("client_id") {
            self.client_id(id);
        }
    }

    /// Learns of the parameters of a token request.
    pub(crate) fn redeemed(&self, parameters: &Form) {
        if let Some(id) = parameters.get("client_id") {
            self.client_id(id);
        }
    }

    /// The challenge is known: of the authorization request, of its code, or of the verifier of an unknown code.
    pub(crate) fn named_by(&self, challenge: &str) {
        let mut digest = Sha256::new();
        digest.add_part(b"attempt");
        digest.add_part(challenge.as_bytes());
        let name = digest.finish();
        let _ = self.id.set(hex(name.get(..8).unwrap_or_default()));
    }

    /// The client is known.
    pub(crate) fn client_id(&self, id: &str) {
        let _ = self.client_id.set(id.to_owned());
    }

    /// What the client calls itself.
    pub(crate) fn client(&self, title: &str) {
        let _ = self.client.set(title.to_owned());
    }

    /// The server is known.
    pub(crate) fn server(&self, name: &str) {
        let _ = self.server.set(name.to_owned());
    }

    /// The person is known.
    pub(crate) fn subject(&self, subject: &str) {
        let _ = self.subject.set(subject.to_owned());
    }

    /// What operators alone are told beside the reason of a refusal.
    pub(crate) fn detail(&self, text: String) {
        let _ = self.detail.set(text);
    }

    /// Whether the request names it.
    pub(crate) fn is_named(&self) -> bool {
        self.id.get().is_some()
    }

    /// Whether a client asks.
    pub(crate) fn has_client(&self) -> bool {
        self.client_id.get().is_some()
    }

    /// Keeps the refusal of a request.
    pub(crate) fn refused(
        &self,
        state: &OauthState,
        server: &AuthorizationServer,
        address: Option<IpAddr>,
        refusal: &OauthRefusal,
    ) {
        let mut reason = format!("{}: {}", refusal.code().name(), refusal.what());
        if let Some(detail) = self.detail.get() {
            reason = format!("{reason} ({detail})");
        }
        self.tell(state, server, address, StepKind::Refused, &reason);
    }

    /// Keeps a step of it; an attempt that nothing names is one of its own. More than the budgets allow are not
    /// kept: nobody has to log in to have one written.
    pub(crate) fn tell(
        &self,
        state: &OauthState,
        server: &AuthorizationServer,
        address: Option<IpAddr>,
        kind: StepKind,
        reason: &str,
    ) {
        let tenant = server.tenant.name.as_str();
        let is_within = state.steps.spend(&account(address), OF_ADDRESS).is_ok()
            && state.steps.spend(&tenant, OF_TENANT).is_ok()
            && state.steps.spend(&"", IN_ALL).is_ok();
        if !is_within {
            return;
        }
        let attempt = self.id.get_or_init(|| {
            let id = uuid::Uuid::new_v4();
            hex(id.as_bytes().get(..8).unwrap_or_default())
        });
        let text = |of: &OnceLock<String>| of.get().cloned().unwrap_or_default();
        let step = Step {
            tenant: tenant.to_owned(),
            attempt: attempt.clone(),
            at_ms: state.clock.now_ms(),
            step: kind.name().to_owned(),
            client_id: text(&self.client_id),
            client: text(&self.client),
            server: text(&self.server),
            subject: text(&self.subject),
            address: address
                .map(|address| address.to_string())
                .unwrap_or_default(),
            reason: reason.to_owned(),
        };
        state.audit.add_step(step.bounded());
    }
}

/// Steps that one address causes in a minute: some five attempts with all their steps.
const OF_ADDRESS: u32 = 60;
/// Steps of a tenant in a minute, so that a flood at one hides no attempt at another.
const OF_TENANT: u32 = 300;
/// Steps of all tenants in a minute.
const IN_ALL: u32 = 1200;
