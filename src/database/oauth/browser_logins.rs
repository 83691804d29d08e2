//! Log-ins of browsers and new consents, of which each person has a bounded number.
//!
//! All of a person's end in one statement each, which keeps all writers waiting: they must not be too many for it. Not
//! here: people, and whether they consented (`logins`).

use super::{
    grants::REVOKED_SUBJECT,
    logins::{Logins, Person},
    revocations::begin_beside,
};
use crate::database::pool::{Error, Row, Value};

impl Logins<'_> {
    /// Stores the log-in of `person` in a browser, by the SHA-256 of its cookie. Returns false if all that the person had
    /// was revoked since they logged in, or their session at the provider was ended. Of more than [`LOGINS`] those that
    /// expire first end.
    pub(crate) async fn log_in(
        self,
        tenant: &str,
        browser: &[u8; 32],
        person: &Person,
        expires_ms: i64,
    ) -> Result<bool, Error> {
        let session = || Value::Text(person.session.clone());
        // A revocation is seen here, or sees the log-in.
        let mut transaction = begin_beside(self.pool).await?;
        let since = vec![
            tenant.into(),
            person.subject.as_str().into(),
            person.auth_ms.into(),
            session(),
        ];
        if !transaction.run(REVOKED_SUBJECT, since).await?.is_empty() {
            return Ok(false);
        }
        let values = vec![
            tenant.into(),
            browser.into(),
            person.subject.as_str().into(),
            person.text()?.into(),
            session(),
            expires_ms.into(),
        ];
        transaction.run(LOG_IN, values).await?;
        let others = vec![
            tenant.into(),
            person.subject.as_str().into(),
            browser.into(),
            (LOGINS - 1).into(),
        ];
        transaction.run(END_SURPLUS, others).await?;
        transaction.commit().await?;
        Ok(true)
    }

    /// Returns the user who is logged in in a browser.
    pub(crate) async fn logged_in(
        self,
        tenant: &str,
        browser: &[u8; 32],
    ) -> Result<Option<Person>, Error> {
        let values = vec![tenant.into(), browser.into(), self.pool.now_ms().into()];
        let rows = self.pool.read(LOGGED_IN, values).await?;
        rows.first().map(Person::of_row).transpose()
    }

    /// The browsers in which a subject is logged in, the newest first, by the SHA-256 of their cookies.
    pub(crate) async fn of_subject(
        self,
        tenant: &str,
        subject: &str,
        limit: usize,
    ) -> Result<Vec<(Vec<u8>, Person)>, Error> {
        let values = vec![
            tenant.into(),
            subject.into(),
            self.pool.now_ms().into(),
            i64::try_from(limit).unwrap_or(i64::MAX).into(),
        ];
        let rows = self.pool.read(OF_SUBJECT, values).await?;
        let login = |row: &Row| Ok((row.get("browser")?, Person::of_row(row)?));
        rows.iter().map(login).collect()
    }

    /// Ends a browser's log-in.
    pub(crate) async fn log_out(self, tenant: &str, browser: &[u8; 32]) -> Result<(), Error> {
        let values = vec![tenant.into(), browser.into()];
        self.pool.write(LOG_OUT, values).await?;
        Ok(())
    }

    /// Stores a consent. Of more than [`CONSENTS`] of the person the oldest are forgotten.
    pub(crate) async fn consent(
        self,
        tenant: &str,
        subject: &str,
        client_id: &str,
        digest: &[u8; 32],
    ) -> Result<(), Error> {
        let with = |number: i64| -> Vec<Value> {
            vec![
                tenant.into(),
                subject.into(),
                client_id.into(),
                digest.into(),
                number.into(),
            ]
        };
        // A revocation removes the same rows, maybe in another order.
        let mut transaction = begin_beside(self.pool).await?;
        transaction.run(CONSENT, with(self.pool.now_ms())).await?;
        transaction.run(FORGET_SURPLUS, with(CONSENTS - 1)).await?;
        transaction.commit().await?;
        Ok(())
    }
}

/// Maximum browsers in which a person is logged in: each row is written at a change of the person's groups.
const LOGINS: i64 = 100;

/// Maximum consents of a person: one for each client with its scopes and redirect URI.
const CONSENTS: i64 = 1000;

const LOG_IN: &str = "
    INSERT INTO logins (tenant, browser, subject, person, session, expires_ms)
    VALUES ($1, $2, $3, $4, $5, $6)
    ON CONFLICT (tenant, browser)
    DO UPDATE SET subject = excluded.subject, person = excluded.person,
                  session = excluded.session, expires_ms = excluded.expires_ms";

const LOGGED_IN: &str = "
    SELECT person
      FROM logins
     WHERE tenant = $1 AND browser = $2 AND expires_ms > $3";

const OF_SUBJECT: &str = "
    SELECT browser, person
      FROM logins
     WHERE tenant = $1 AND subject = $2 AND expires_ms > $3
     ORDER BY expires_ms DESC
     LIMIT $4";

const LOG_OUT: &str = "
    DELETE FROM logins
     WHERE tenant = $1 AND browser = $2";

/// Ends some log-ins of a person that are more than so many beside that of a browser. The subject is compared outside,
/// too: a browser in which somebody else logs in at this moment stays logged in.
const END_SURPLUS: &str = "
    DELETE FROM logins
     WHERE tenant = $1 AND subject = $2
       AND browser IN (SELECT browser
                         FROM logins
                        WHERE tenant = $1 AND subject = $2 AND browser <> $3
                        ORDER BY expires_ms DESC, browser
                        LIMIT 100 OFFSET $4)";

const CONSENT: &str = "
    INSERT INTO consents (tenant, subject, client_id, digest, created_ms)
    VALUES ($1, $2, $3, $4, $5)
    ON CONFLICT (tenant, subject, client_id, digest) DO NOTHING";

/// Removes some consents of a person that are more than so many beside this one.
const FORGET_SURPLUS: &str = "
    DELETE FROM consents
     WHERE tenant = $1 AND subject = $2
       AND (client_id, digest) IN (SELECT client_id, digest
                                     FROM consents
                                    WHERE tenant = $1 AND subject = $2
                                      AND NOT (client_id = $3 AND digest = $4)
                                    ORDER BY created_ms DESC, client_id, digest
                                    LIMIT 100 OFFSET $5)";
