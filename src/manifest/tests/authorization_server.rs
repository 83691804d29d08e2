//! Tests of `manifest::authorization_server`.

use super::super::reader::parse;
use crate::config::Format;
use crate::declare::{AuthMode, GroupsClaim, ProviderKind, Tenant};

use super::super::authorization_server::*;

fn read(text: &str) -> Result<Arc<Tenant>, String> {
    let env = [
        ("SECRET", "s3cret-$-of-the-client"),
        ("HASH", HASH),
        ("SHORT", "s3cret"),
    ];
    let env = env.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let manifest = parse("F", text, Format::Yaml, &env.into()).map_err(|mistakes| {
        let lines: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
        lines.join("\n")
    })?;
    Ok(Arc::clone(&manifest.catalog.tenants["a"]))
}

fn builtin(text: &str) -> Arc<Builtin> {
    let tenant = read(text).unwrap();
    let AuthMode::Builtin(builtin) = &tenant.auth else {
        panic!("{:?}", tenant.auth)
    };
    Arc::clone(builtin)
}

const HASH: &str =
    "$argon2id$v=19$m=19456,t=2,p=1$c2FsdHNhbHRzYWx0$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

/// One tenant's hash is computed in the turns of all.
#[test]
fn a_costly_hash_is_a_mistake_of_its_user() {
    let costly = HASH
        .replace("m=19456,t=2", "m=262144,t=16")
        .replace('$', "$$");
    let text = format!("tenants:\n  a:\n    users:\n      ada: {{password_hash: \"{costly}\"}}\n");
    let found = read(&text).expect_err("a mistake");
    insta::assert_snapshot!(found, @"F:4: tenants.a.users.ada.password_hash: costs more than m=65536,t=4,p=4; write an Argon2id hash like $$argon2id$$v=19$$m=19456,t=2,p=1$$…, or password");
}

#[test]
#[expect(clippy::too_many_lines, reason = "one table")]
fn reads_every_key() {
    let found = builtin(
        r#"tenants:
  a:
    auth: {mode: builtin, scopes: [b, a], registration: false, documents: false, own_keys: {max: 100, ttl: 7d}}
    users:
      ada: {password_hash: "${env:HASH}", groups: [g, h, g], admin: false}
      bob@example.com: {password: "${env:SECRET}", disabled: true}
      nobody: {}
    clients:
      My.App_1:
        title: My app
        redirect_uris: ["https://app.test/cb", "http://127.0.0.1/cb"]
        secret: "${env:SECRET}"
      signer:
        redirect_uris: ["com.example.app:/cb"]
        jwks: {keys: [{kty: OKP, crv: Ed25519, x: "a-b_$", use: sig}]}
    providers:
      corp: {issuer: "https://corp.test", client_id: us}
      entra:
        kind: openid
        title: Entra
        issuer: https://login.microsoftonline.com/6d5c1d4a-0000-4000-8000-000000000000/v2.0
        client_id: us
        client_secret: "${env:SECRET}"
        scopes: [openid, email]
        groups_claim: roles
        allow: {subjects: [s], domains: [example.com], groups: [g]}
      github:
        kind: oauth
        issuer: https://github.com/login/oauth
        authorization_url: https://github.com/login/oauth/authorize
        token_url: https://github.com/login/oauth/access_token
        user_url: https://api.github.com/user
        client_id: us
        allow: {subjects: ["583231"]}
"#,
    );
    assert_eq!(found.scopes, ["b", "a"]);
    assert!(!found.registration && !found.documents);
    let rules = found.own_keys.unwrap();
    let (week, day) = (Duration::from_hours(7 * 24), Duration::from_hours(24));
    assert_eq!((rules.max, rules.ttl, rules.overlap), (100, week, day));
    let ada = &found.users["ada"];
    assert_eq!(ada.password.as_ref().unwrap().expose(), HASH);
    assert_eq!(
        (&ada.groups[..], ada.disabled),
        (&["g".to_owned(), "h".to_owned()][..], false)
    );
    let bob = &found.users["bob@example.com"];
    assert!(
        bob.disabled && bob.password.is_none(),
        "it is hashed when it is applied"
    );
    let app = &found.clients["My.App_1"];
    assert_eq!((app.title.as_str(), app.redirect_uris.len()), ("My app", 2));
    assert_eq!(
        app.secret.as_ref().unwrap().expose(),
        "s3cret-$-of-the-client"
    );
    let signer = &found.clients["signer"];
    assert_eq!(signer.title, "signer");
    let jwks: Json = serde_json::from_str(signer.jwks.as_ref().unwrap()).unwrap();
    assert_eq!(jwks["keys"][0]["x"], "a-b_$");
    let corp = &found.providers["corp"];
    let openid = ProviderKind::OpenId {
        issuer: "https://corp.test".to_owned(),
        groups: GroupsClaim {
            name: "groups".to_owned(),
            map: None,
        },
        vouches: false,
    };
    assert_eq!((corp.title.as_str(), &corp.kind), ("corp", &openid));
    assert_eq!(corp.scopes, ["openid", "profile", "email"]);
    assert!(corp.allow.is_empty() && corp.client_secret.is_none());
    let entra = &found.providers["entra"];
    assert_eq!(
        (entra.title.as_str(), &entra.scopes[..]),
        ("Entra", &["openid".to_owned(), "email".to_owned()][..])
    );
    assert_eq!(
        entra.client_secret.as_ref().unwrap().expose(),
        "s3cret-$-of-the-client"
    );
    assert_eq!(entra.allow.domains, ["example.com"]);
    let github = &found.providers["github"];
    assert_eq!(github.issuer(), "https://github.com/login/oauth");
    for (provider, iss, is_its) in [
        (github, "https://github.com/login/oauth", true),
        (github, "https://github.com", true),
        (github, "https://github.com/", false),
        (github, "https://github.com/login/oauth/", false),
        (github, "https://github.co", false),
        (github, "https:", false),
        (github, "https:/", false),
        (github, "", false),
        (corp, "https://corp.test", true),
        (corp, "https://corp.tes", false),
    ] {
        assert_eq!(provider.may_name(iss), is_its, "{iss}");
    }
    let ProviderKind::OAuth {
        subject_member,
        user_url,
        ..
    } = &github.kind
    else {
        panic!()
    };
    assert_eq!(
        (subject_member.as_str(), user_url.as_str()),
        ("id", "https://api.github.com/user")
    );
    assert!(github.scopes.is_empty());
    assert!(!format!("{found:?}").contains("s3cret"), "never shown");
}

/// The administration API took groups with a NUL, which no manifest can hold, nor every database.
#[test]
fn names_hold_no_control_characters() {
    for wrong in ["\\0", "\\n", "\\x7f", "\\x9b"] {
        let groups = format!("groups: [\"a{wrong}b\"], password_hash: \"${{env:HASH}}\"");
        let found = read(&format!("tenants: {{a: {{users: {{ada: {{{groups}}}}}}}}}")).unwrap_err();
        assert!(
            found.contains("holds a control character"),
            "{wrong}: {found}"
        );
    }
}

#[test]
fn everything_has_its_default() {
    for text in ["tenants: {a: {}}", "tenants: {a: {auth: {mode: builtin}}}"] {
        let found = builtin(text);
        assert!(found.registration && found.documents, "{text}");
        assert_eq!(found.own_keys, None, "{text}");
        assert!(found.users.is_empty() && found.scopes.is_empty());
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "one table")]
fn all_mistakes_at_once() {
    let found = read(
            r#"tenants:
  a:
    auth: {scopes: ["a b"], registration: 1, issuer: x, own_keys: {max: 101, ttl: 0s, most: 1}}
    users:
      Ada: {password: "${env:SHORT}"}
      "a#b": {admin: true, groups: [""], password_hash: "s3cret"}
      a@b@c: {password: "${env:SECRET}", password_hash: "${env:HASH}", email: x}
      x: 5
    clients:
      c_x: {redirect_uris: []}
      https://a.test/c: {redirect_uris: ["https://a.test/#"]}
      a b: {redirect_uris: ["javascript:alert(1)"], secret: "${env:SHORT}"}
      both: {redirect_uris: ["https://a.test"], secret: "${env:SECRET}", jwks: {keys: [{kty: EC}]}}
      leaky: {redirect_uris: ["https://a.test"], title: "", jwks: {keys: [{kty: EC, dp: s3cret}]}}
      odd: {redirect_uris: ["https://a.test"], jwks: {keys: [{kty: oct, k: s3cret}]}}
      none: {jwks: {}}
    providers:
      Corp: {issuer: "https://corp.test", client_id: x, scopes: [email]}
      one: {issuer: "https://corp.test", client_id: "", token_url: "https://x"}
      google: {issuer: "https://accounts.google.com", client_id: x, client_secret: ""}
      entra: {issuer: "https://login.microsoftonline.com/common/v2.0", client_id: x, allow: {domains: []}}
      github:
        kind: oauth
        issuer: gh
        authorization_url: https://github.com/login/oauth/authorize
        token_url: ftp://github.com
        client_id: x
        allow: {domains: [X.com], groups: [g]}
      bare: {}
      saml: {kind: saml}
"#,
        )
        .unwrap_err();
    assert!(!found.contains("s3cret"), "{found}");
    insta::assert_snapshot!(found, @r###"
        F:3: tenants.a.auth.issuer: unknown key; known here: mode, scopes, registration, documents, recheck, own_keys
        F:5: tenants.a.users.Ada: "Ada" is no name of a user; use a-z, 0-9 and -, or an e-mail address in small letters
        F:5: tenants.a.users.Ada.password: is shorter than 8 letters; choose one of 8 letters to 1024 bytes
        F:6: tenants.a.users.a#b: "a#b" is no name of a user; use a-z, 0-9 and -, or an e-mail address in small letters
        F:6: tenants.a.users.a#b.password_hash: is no hash; write an Argon2id hash like $$argon2id$$v=19$$m=19456,t=2,p=1$$…, or password
        F:6: tenants.a.users.a#b.groups: is empty; write a name
        F:6: tenants.a.users.a#b.admin: is not available yet: users administrate nothing; make an API key with the scope admin (lockgate key add)
        F:7: tenants.a.users.a@b@c: "a@b@c" is no name of a user; use a-z, 0-9 and -, or an e-mail address in small letters
        F:7: tenants.a.users.a@b@c.email: unknown key; known here: password, password_hash, groups, admin, disabled
        F:7: tenants.a.users.a@b@c.password_hash: stands beside password; keep one of the two
        F:8: tenants.a.users.x: a number where a table is expected; write a table
        F:12: tenants.a.clients.a b: "a b" is no client id; use letters, digits, -, _ and ., at most 128, the first a letter or digit
        F:12: tenants.a.clients.a b.redirect_uris: "javascript:alert(1)": a redirect URI has a scheme that is nobody's own; write https://…, http:// on loopback, or an app's own scheme
        F:12: tenants.a.clients.a b.secret: is shorter than 16 letters, or not of ASCII; make a random one, for example by openssl rand -hex 32
        F:13: tenants.a.clients.both.jwks: stands beside secret: a client proves itself in one way; keep one of the two
        F:10: tenants.a.clients.c_x: "c_x" looks like one that registered itself; do not begin it with c_
        F:10: tenants.a.clients.c_x.redirect_uris: names no URI; list where its answers go
        F:11: tenants.a.clients.https://a.test/c: "https://a.test/c" is that of a metadata document; choose a name, or leave it out
        F:11: tenants.a.clients.https://a.test/c.redirect_uris: "https://a.test/#": a redirect URI has a fragment; write https://…, http:// on loopback, or an app's own scheme
        F:14: tenants.a.clients.leaky.title: is empty; write a name
        F:14: tenants.a.clients.leaky.jwks.keys: holds a private key; write its public members alone, and make a new pair
        F:16: tenants.a.clients.none.jwks.keys: is missing; list the public keys
        F:16: tenants.a.clients.none.redirect_uris: is missing; list where its answers go
        F:15: tenants.a.clients.odd.jwks.keys: holds a key whose kty is none of RSA, EC, OKP; write the public half of a key pair
        F:18: tenants.a.providers.Corp: "Corp" is not a name; use a-z, 0-9 and -, at most 63, the first not -
        F:18: tenants.a.providers.Corp.scopes: asks for no openid; add openid, without which there is no ID token
        F:29: tenants.a.providers.bare.client_id: is missing; write our client id there
        F:29: tenants.a.providers.bare.issuer: is missing; write its issuer, https://…
        F:21: tenants.a.providers.entra.allow: is missing or empty, and this provider knows everybody of the world; say who may come in: allow: {domains: [example.com]} or subjects
        F:22: tenants.a.providers.github.user_url: is missing; write its URL, https://…
        F:26: tenants.a.providers.github.token_url: "ftp://github.com" is no https URL; write its URL, https://…
        F:24: tenants.a.providers.github.issuer: "gh" is no URL; write the issuer as its tokens have it in iss, https://…
        F:28: tenants.a.providers.github.allow.domains: cannot be known where kind is oauth; list subjects
        F:28: tenants.a.providers.github.allow.groups: cannot be known where kind is oauth; list subjects
        F:28: tenants.a.providers.github.allow.domains: "X.com" is no domain; write it like example.com, in small letters
        F:20: tenants.a.providers.google.client_secret: is empty; write a name
        F:20: tenants.a.providers.google.allow: is missing or empty, and this provider knows everybody of the world; say who may come in: allow: {domains: [example.com]} or subjects
        F:19: tenants.a.providers.one.token_url: unknown key; known here: kind, title, issuer, client_id, client_secret, scopes, authorization_parameters, exchange, allow, groups_claim, groups_map, id_jag
        F:19: tenants.a.providers.one.client_id: is empty; write a name
        F:30: tenants.a.providers.saml.kind: "saml" is none of openid, oauth; write one of them
        F:30: tenants.a.providers.saml.client_id: is missing; write our client id there
        F:30: tenants.a.providers.saml.issuer: is missing; write its issuer, https://…
        F:19: tenants.a.providers.one.issuer: has the issuer of Corp: their subjects would be the same; keep one of the two
        F:3: tenants.a.auth.registration: a number where true or false is expected; write true or false
        F:3: tenants.a.auth.scopes: "a b" is no scope; write one scope an item, without blanks, quotes and backslashes
        F:3: tenants.a.auth.own_keys.most: unknown key; known here: max, ttl, overlap
        F:3: tenants.a.auth.own_keys.max: is too many; write 100 at most
        F:3: tenants.a.auth.own_keys.ttl: is off; write a duration, as 90d
        "###);
}

#[test]
fn a_workload_is_told_by_its_claims() {
    let with = |workload: &str| {
        let text = format!("tenants: {{a: {{clients: {{ci: {{workload: {workload}}}}}}}}}");
        read(&text).map(|tenant| {
            let AuthMode::Builtin(builtin) = &tenant.auth else {
                panic!("{:?}", tenant.auth)
            };
            Arc::clone(&builtin.clients["ci"])
        })
    };
    let github = "issuer: \"https://token.actions.githubusercontent.com\"";
    let found = with(&format!(
        "{{{github}, claims: {{repository: acme/app, ref: [refs/heads/main, refs/tags/v*]}}}}"
    ));
    let found = found.unwrap();
    assert!(found.is_machine && found.redirect_uris.is_empty());
    let workload = found.workload.as_ref().unwrap();
    assert_eq!((workload.is_reusable, &workload.audience), (false, &None));
    let refs = &workload.claims["ref"];
    for (text, wanted) in [
        ("refs/heads/main", true),
        ("refs/heads/main2", false),
        ("refs/tags/v", true),
        ("refs/tags/v1", true),
        ("refs/tags/x", false),
        ("", false),
    ] {
        assert_eq!(Workload::admits(refs, text), wanted, "{text}");
    }
    for (claims, is_enough) in [
        ("{ref: refs/heads/main}", false),
        (
            "{job_workflow_ref: \"acme/app/.github/workflows/x.yml@main\"}",
            false,
        ),
        ("{sub: \"repo:*\"}", false),
        ("{repository: \"acme*\"}", false),
        ("{repository: [acme/app, \"a*\"]}", false),
        ("{repository: \"acme/*\"}", true),
        ("{sub: \"repo:acme/*\"}", true),
        ("{repository_owner_id: \"1\"}", true),
    ] {
        let found = with(&format!("{{{github}, claims: {claims}}}"));
        assert_eq!(found.is_ok(), is_enough, "{claims}");
    }
    let mistakes = [
        "{}".to_owned(),
        format!("{{{github}, claims: {{}}}}"),
        "{issuer: \"https://k.test\", claims: {aud: x, sub: \"*\", a: [], b: 1}, audience: \"\"}".to_owned(),
        "{issuer: k, claims: {sub: x}, jwks: {keys: []}, title: x}}, two: {secret: \"a secret of 32 bytes\", workload: {issuer: \"https://k.test\", claims: {sub: a}}, grant_types: [client_credentials], redirect_uris: [\"https://a.test\"]".to_owned(),
    ];
    let found = mistakes
        .map(|workload| with(&workload).unwrap_err())
        .join("\n");
    insta::assert_snapshot!(found, @r###"
    F:1: tenants.a.clients.ci.workload.issuer: is missing; write the iss of the tokens, https://…
    F:1: tenants.a.clients.ci.workload.claims: is missing; tell by a claim whose workload it is: claims: {repository: acme/app}
    F:1: tenants.a.clients.ci.workload.claims: names no claim; tell by a claim whose workload it is: {repository: acme/app}
    F:1: tenants.a.clients.ci.workload.audience: is empty; write a name
    F:1: tenants.a.clients.ci.workload.claims.a: names no value; write one, or leave the claim out
    F:1: tenants.a.clients.ci.workload.claims.aud: is checked in any case; name a claim that tells workloads apart
    F:1: tenants.a.clients.ci.workload.claims.b: a number where a text is expected; put it in quotes
    F:1: tenants.a.clients.ci.workload.claims.sub: is true of every token; write what it begins with, or leave it out
    F:1: tenants.a.clients.ci.workload.title: unknown key; known here: issuer, audience, claims, reusable, jwks
    F:1: tenants.a.clients.ci.workload.issuer: "k" is no URL; write the issuer as its tokens have it in iss, https://…
    F:1: tenants.a.clients.ci.workload.jwks.keys: holds no key; write one, or leave jwks out
    F:1: tenants.a.clients.two.secret: stands beside workload: the tokens of its platform are all that it has; keep one of the two
    F:1: tenants.a.clients.two.grant_types: stands beside workload: the tokens of its platform are all that it has; keep one of the two
    F:1: tenants.a.clients.two.redirect_uris: stands beside workload: the tokens of its platform are all that it has; keep one of the two
    "###);
}

#[test]
fn they_mean_nothing_without_an_authorization_server() {
    for mode in ["none", "keys", "external, issuer: \"https://i.test\""] {
        let found = read(&format!(
            "tenants:
  a:
    auth: {{mode: {mode}}}
    users: {{ada: {{}}}}
    clients: {{c: {{redirect_uris: [\"https://c.test\"]}}}}
    providers: {{p: {{issuer: \"https://p.test\", client_id: x}}}}
"
        ));
        let found = found.unwrap_err();
        assert_eq!(found.lines().count(), 3, "{found}");
        let text = "F:4: tenants.a.users.ada: means nothing where auth.mode is not builtin; ";
        assert!(found.starts_with(text), "{found}");
    }
}

#[test]
fn who_everybody_is_must_be_said() {
    let with = |issuer: &str, allow: &str| {
        read(&format!(
            "tenants: {{a: {{providers: {{p: {{issuer: \"{issuer}\", client_id: x, allow: {allow}}}}}}}}}"
        ))
    };
    for (issuer, is_public) in [
        ("https://accounts.google.com", true),
        ("https://login.microsoftonline.com/common/v2.0", true),
        ("https://login.microsoftonline.com/organizations/v2.0", true),
        ("https://login.microsoftonline.com/consumers/v2.0", true),
        (
            "https://login.microsoftonline.com/9188040d-6c67-4c5b-b112-36a304b66dad/v2.0",
            true,
        ),
        (
            "https://login.microsoftonline.com/6d5c1d4a-0000-4000-8000-000000000000/v2.0",
            false,
        ),
        ("https://gitlab.com", true),
        ("https://gitlab.example.com", false),
        ("https://example.okta.com", false),
    ] {
        assert_eq!(with(issuer, "{}").is_err(), is_public, "{issuer}");
        assert!(with(issuer, "{subjects: [x]}").is_ok(), "{issuer}");
        assert!(with(issuer, "{groups: [x]}").is_ok(), "{issuer}");
    }
}

#[test]
fn names_are_nobody_elses() {
    for good in ["ada", "0-x", "ada@example.com", "a.b_c-d@x.y-z.test"] {
        assert!(check_user_name(good).is_ok(), "{good}");
    }
    let long = format!("{}@x.test", "a".repeat(250));
    for bad in [
        "",
        "Ada",
        "ada@Example.com",
        "a#b",
        "a@b#c",
        "a#b@c.test",
        "https://i.test#x",
        "a@",
        "@b",
        "a@b@c",
        "a@.b",
        "a@b.",
        "a b",
        "a/b",
        "a+b@c.test",
        "-a@b",
        long.as_str(),
    ] {
        assert!(check_user_name(bad).is_err(), "{bad}");
    }
    for good in ["app", "My.App_1", "0", "cx_"] {
        assert!(check_client_id(good).is_ok(), "{good}");
    }
    let long = "a".repeat(129);
    for bad in [
        "",
        "c_",
        "c_x",
        "http://x",
        "https://x",
        "a/b",
        "a:b",
        "a b",
        "a#",
        "é",
        "_a",
        "..",
        long.as_str(),
    ] {
        assert!(check_client_id(bad).is_err(), "{bad}");
    }
}
