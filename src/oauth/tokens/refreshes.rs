//! Budgets of refreshes by the minute: of a grant, of a person at one client, and of a person.
//!
//! Not here: the refresh itself (`token`).

use std::time::Duration;

use uuid::Uuid;

use crate::{database::oauth::Grant, oauth::base::Throttle};

/// The budgets of the refreshes of one grant.
pub(super) struct Budgets<'r> {
    writes: &'r Throttle,
    /// The key of the grant.
    grant: (&'static str, Uuid),
    /// The key of its person at its client.
    client: (&'static str, &'r str, &'r str, &'r str),
    /// The key of its person.
    person: (&'static str, &'r str, &'r str),
}

impl<'r> Budgets<'r> {
    /// Those of a grant of a tenant.
    pub(super) fn of(writes: &'r Throttle, tenant: &'r str, grant: &'r Grant) -> Self {
        let (subject, client) = (grant.subject.as_str(), grant.client_id.as_str());
        Self {
            writes,
            grant: ("grant", grant.id),
            client: ("refreshes", tenant, subject, client),
            person: ("refreshes", tenant, subject),
        }
    }

    /// Reports whether [`Self::spend`] would succeed.
    ///
    /// # Errors
    ///
    /// The time until a retry.
    pub(super) fn check(&self) -> Result<(), Duration> {
        self.writes.check(&self.grant, REFRESHES)?;
        self.writes.check(&self.client, CLIENT_REFRESHES)?;
        self.writes.check(&self.person, PERSON_REFRESHES)
    }

    /// Takes a refresh from all of them.
    ///
    /// # Errors
    ///
    /// The time until a retry, if one is used up; nothing is taken then.
    pub(super) fn spend(&self) -> Result<(), Duration> {
        let writes = self.writes;
        writes.spend(&self.grant, REFRESHES)?;
        let at_client = writes.spend(&self.client, CLIENT_REFRESHES);
        at_client.inspect_err(|_| writes.refund(&self.grant))?;
        let in_all = writes.spend(&self.person, PERSON_REFRESHES);
        in_all.inspect_err(|_| self.refund_of_grant())
    }

    /// Gives back what a retry took, which stores no further token, but not that of its grant: each takes the lock of
    /// the grant's row and a commit, and others wait for a connection meanwhile.
    pub(super) fn refund_retry(&self) {
        self.writes.refund(&self.client);
        self.writes.refund(&self.person);
    }

    /// Gives back a refresh that did not happen.
    pub(super) fn refund(&self) {
        self.refund_of_grant();
        self.writes.refund(&self.person);
    }

    fn refund_of_grant(&self) {
        self.writes.refund(&self.grant);
        self.writes.refund(&self.client);
    }
}

/// Maximum refreshes of one grant per minute: each writes a token that lives for weeks.
pub(super) const REFRESHES: u32 = 300;

/// Maximum refreshes of all grants of one person to one client per minute, which leave a quarter to other clients.
const CLIENT_REFRESHES: u32 = 900;

/// Maximum refreshes of all grants of one person per minute.
const PERSON_REFRESHES: u32 = 1200;

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(client: &str) -> Grant {
        Grant {
            id: Uuid::new_v4(),
            subject: "ada".to_owned(),
            groups: Vec::new(),
            client_id: client.to_owned(),
            resource: "https://gw.test/t/a/x/mcp".to_owned(),
            scope: String::new(),
            session: None,
            jkt: None,
            auth_ms: 0,
            expires_ms: 1,
        }
    }

    #[tokio::test]
    async fn a_retry_counts_for_its_grant_alone() {
        let (writes, grant) = (Throttle::new(), grant("c_app"));
        let budgets = Budgets::of(&writes, "a", &grant);
        for at in 1..=REFRESHES {
            assert_eq!(budgets.spend(), Ok(()), "{at}");
            budgets.refund_retry();
        }
        assert!(budgets.check().is_err());
        assert!(budgets.spend().is_err(), "the 301st");
        assert_eq!(writes.check(&budgets.client, 1), Ok(()));
        assert_eq!(writes.check(&budgets.person, 1), Ok(()));
    }

    #[tokio::test]
    async fn a_client_leaves_refreshes_of_its_person_to_others() {
        let writes = Throttle::new();
        for (client, wanted) in [("c_app", 900), ("c_web", 300)] {
            let grant = grant(client);
            let budgets = Budgets::of(&writes, "a", &grant);
            for at in 1..=wanted {
                assert_eq!(budgets.spend(), Ok(()), "{client} {at}");
                // As if each were of another grant.
                writes.refund(&budgets.grant);
            }
            assert!(budgets.check().is_err(), "{client}");
            assert!(budgets.spend().is_err(), "{client}");
            assert_eq!(writes.check(&budgets.grant, 1), Ok(()), "nothing is taken");
            assert_eq!(
                writes.check(&budgets.client, wanted + 1),
                Ok(()),
                "{client}"
            );
        }
    }

    #[tokio::test]
    async fn a_refresh_that_does_not_happen_takes_nothing() {
        let (writes, grant) = (Throttle::new(), grant("c_app"));
        let budgets = Budgets::of(&writes, "a", &grant);
        for at in 0..=PERSON_REFRESHES {
            assert_eq!(budgets.spend(), Ok(()), "{at}");
            budgets.refund();
        }
    }
}
