//! Authorization servers: a real one, and a scripted one.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::SystemTime,
};

use aws_lc_rs::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair},
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use jsonwebtoken::{Algorithm, EncodingKey, crypto};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines},
    net::{TcpListener, TcpStream},
    process::{Child, ChildStdin, ChildStdout, Command},
    sync::watch,
    task::JoinHandle,
    time::timeout,
};

use crate::support::harness::{DEADLINE, client, json_of, package, within};

/// Seconds since the epoch.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap().as_secs()
}

/// A real issuer: the npm package `oidc-provider`.
pub(crate) struct Provider {
    /// The issuer URL.
    pub(crate) issuer: String,
    _process: Child,
    stdin: ChildStdin,
    stdout: Lines<BufReader<ChildStdout>>,
}

impl Provider {
    /// Starts the provider, whose packages `scripts/test` installs.
    pub(crate) async fn start() -> Self {
        let folder: PathBuf = package().join("tests/fixtures/issuer");
        assert!(
            folder.join("node_modules").exists(),
            "run npm ci in tests/fixtures/issuer, or scripts/test"
        );
        for _ in 0..STARTS {
            if let Some(started) = Self::attempt(&folder).await {
                return started;
            }
        }
        panic!("the issuer does not start");
    }

    /// Starts it, and returns `None` if its URL is not there by the deadline.
    async fn attempt(folder: &Path) -> Option<Self> {
        let mut process = Command::new("node")
            .arg("server.mjs")
            .current_dir(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let stdin = process.stdin.take().unwrap();
        let mut stdout = BufReader::new(process.stdout.take().unwrap()).lines();
        let id = process.id().unwrap();
        let ready = line(&mut stdout, |line| line.starts_with("http://"));
        let Ok(issuer) = timeout(DEADLINE, ready).await else {
            let state = std::fs::read_to_string(format!("/proc/{id}/stat"));
            eprintln!("no URL of the issuer after {DEADLINE:?}: {state:?}");
            return None;
        };
        Some(Self {
            issuer,
            _process: process,
            stdin,
            stdout,
        })
    }

    /// An access token for `resource`, by client credentials: its subject is the client.
    pub(crate) async fn token(&self, name: &str, resource: &str, scope: &str) -> String {
        self.issued(name, (resource, scope), None).await
    }

    /// A token that is bound to the key of a proof (RFC 9449).
    pub(crate) async fn bound_token(&self, name: &str, resource: &str, proof: &str) -> String {
        self.issued(name, (resource, ""), Some(proof)).await
    }

    async fn issued(
        &self,
        name: &str,
        (resource, scope): (&str, &str),
        proof: Option<&str>,
    ) -> String {
        let pairs = [
            ("grant_type", "client_credentials"),
            ("client_id", name),
            ("client_secret", "secret"),
            ("resource", resource),
            ("scope", scope),
        ];
        let form = url::form_urlencoded::Serializer::new(String::new())
            .extend_pairs(pairs)
            .finish();
        let mut asked = client()
            .post(format!("{}/token", self.issuer))
            .header("Content-Type", "application/x-www-form-urlencoded")
            .body(form);
        if let Some(proof) = proof {
            asked = asked.header("DPoP", proof);
        }
        let answer = json_of(within("a token", asked.send()).await.unwrap()).await;
        let token = answer["access_token"].as_str();
        token
            .unwrap_or_else(|| panic!("no token: {answer}"))
            .to_owned()
    }

    /// Revokes a token of the client `name`.
    pub(crate) async fn revoke(&self, name: &str, token: &str) {
        let pairs = [
            ("client_id", name),
            ("client_secret", "secret"),
            ("token", token),
        ];
        let form = url::form_urlencoded::Serializer::new(String::new())
            .extend_pairs(pairs)
            .finish();
        let asked = client()
            .post(format!("{}/token/revocation", self.issuer))
            .header("Content-Type", "application/x-www-form-urlencoded")
            .body(form);
        let answer = within("a revocation", asked.send()).await.unwrap();
        assert!(answer.status().is_success(), "{}", answer.status());
    }

    /// Makes new keys sign from now on; the old keys stay in the set.
    pub(crate) async fn rotate(&mut self) {
        self.tell("rotate\n").await;
    }

    /// Removes the old keys from the set.
    pub(crate) async fn retire(&mut self) {
        self.tell("retire\n").await;
    }

    /// Registers `url` as redirect URI of the client `gateway`.
    pub(crate) async fn callback(&mut self, url: &str) {
        self.tell(&format!("callback {url}\n")).await;
    }

    /// Logs `name` in from now on.
    pub(crate) async fn person(&mut self, name: &str) {
        self.tell(&format!("person {name}\n")).await;
    }

    /// Gives everybody these groups, separated by commas.
    pub(crate) async fn groups(&mut self, names: &str) {
        self.tell(&format!("groups {names}\n")).await;
    }

    /// Disables everybody's account.
    pub(crate) async fn disable(&mut self) {
        self.tell("disable\n").await;
    }

    /// Sets the life of access tokens of people, in seconds.
    pub(crate) async fn ttl(&mut self, seconds: u32) {
        self.tell(&format!("ttl {seconds}\n")).await;
    }

    /// Refuses every exchange of a token by this error from now on.
    pub(crate) async fn refuse(&mut self, error: &str) {
        self.tell(&format!("refuse {error}\n")).await;
    }

    /// Ends the access token that was exchanged last.
    pub(crate) async fn forget(&mut self) {
        self.tell("forget\n").await;
    }

    /// What the provider says about a token (RFC 7662).
    pub(crate) async fn introspect(&self, token: &str) -> Value {
        let form = url::form_urlencoded::Serializer::new(String::new())
            .append_pair("token", token)
            .finish();
        let asked = client()
            .post(format!("{}/token/introspection", self.issuer))
            .header("Content-Type", "application/x-www-form-urlencoded")
            .header(
                "Authorization",
                crate::support::oauth_client::basic("introspector", "a secret: of%20spaces"),
            )
            .body(form);
        json_of(within("an introspection", asked.send()).await.unwrap()).await
    }

    async fn tell(&mut self, what: &str) {
        self.stdin.write_all(what.as_bytes()).await.unwrap();
        within(
            "an answer of the issuer",
            line(&mut self.stdout, |line| line == "done"),
        )
        .await;
    }
}

async fn line(lines: &mut Lines<BufReader<ChildStdout>>, is_it: impl Fn(&str) -> bool) -> String {
    loop {
        let line = lines.next_line().await.unwrap().expect("it lives");
        if is_it(&line) {
            return line;
        }
    }
}

/// How often the provider is started before a test gives up: Node and its modules may have to be
/// read from a slow disk, and what one attempt has read is there for the next.
const STARTS: usize = 3;

/// Answers of an issuer to requests for its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mood {
    /// The keys.
    Good,
    /// A closed connection.
    Gone,
    /// No answer.
    Slow,
    /// An endless answer.
    Huge,
    /// A redirect to the keys.
    Redirecting,
    /// An HTML page.
    Html,
    /// An error with the keys as its body.
    Failing,
    /// Metadata of another issuer.
    Foreign,
    /// Metadata with a `jwks_uri` at the metadata service of a cloud.
    Steering,
}

/// A scripted issuer.
pub(crate) struct Issuer {
    /// The issuer URL.
    pub(crate) url: String,
    /// Connections so far.
    hits: Arc<AtomicUsize>,
    mood: watch::Sender<(Mood, Value)>,
    task: JoinHandle<()>,
}

impl Issuer {
    /// An issuer with the public halves of `keys`.
    pub(crate) async fn start(keys: &[&Key]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (mood, reader) = watch::channel((Mood::Good, set(keys)));
        let hits = Arc::<AtomicUsize>::default();
        let (counted, issuer) = (Arc::clone(&hits), url.clone());
        let task = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(answer(socket, issuer.clone(), reader.clone()));
            }
        });
        Self {
            url,
            hits,
            mood,
            task,
        }
    }

    /// Connections so far.
    pub(crate) fn hits(&self) -> usize {
        self.hits.load(Ordering::SeqCst)
    }

    /// Sets the kind of its answers.
    pub(crate) fn turn(&self, mood: Mood) {
        self.mood.send_modify(|state| state.0 = mood);
    }

    /// Sets the keys of its answers.
    pub(crate) fn publish(&self, keys: &[&Key]) {
        self.mood.send_modify(|state| state.1 = set(keys));
    }

    /// The claims of a valid access token for `resource`.
    pub(crate) fn claims(&self, resource: &str) -> Value {
        json!({"iss": self.url, "sub": "ada", "aud": resource, "client_id": "app",
            "iat": now(), "exp": now() + 300, "jti": "j", "scope": "files:read"})
    }
}

impl Drop for Issuer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn set(keys: &[&Key]) -> Value {
    json!({"keys": keys.iter().map(|key| key.public()).collect::<Vec<_>>()})
}

async fn answer(mut socket: TcpStream, issuer: String, state: watch::Receiver<(Mood, Value)>) {
    let mut request = vec![0; 4096];
    let count = socket.read(&mut request).await.unwrap_or(0);
    let request = String::from_utf8_lossy(&request[..count]).into_owned();
    let path = request.split(' ').nth(1).unwrap_or("").to_owned();
    let (mood, keys) = state.borrow().clone();
    let is_metadata = path.starts_with("/.well-known/");
    let metadata = match mood {
        Mood::Foreign => {
            json!({"issuer": format!("{issuer}/"), "jwks_uri": format!("{issuer}/keys")})
        }
        Mood::Steering => json!({"issuer": issuer, "jwks_uri": "http://169.254.169.254/keys"}),
        _ => json!({"issuer": issuer, "jwks_uri": format!("{issuer}/keys")}),
    };
    let body = if is_metadata { metadata } else { keys }.to_string();
    let with = |status: &str, kind: &str, more: &str| {
        let length = body.len();
        format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n{more}\r\n{body}"
        )
    };
    let json = "application/json";
    let text = match mood {
        _ if is_metadata || path == "/elsewhere" => with("200 OK", json, ""),
        Mood::Good | Mood::Foreign | Mood::Steering => with("200 OK", json, ""),
        Mood::Gone => return,
        Mood::Slow => {
            // Wait until the other side closes.
            let _ = socket.read(&mut [0; 1]).await;
            return;
        }
        Mood::Huge => {
            let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{\"keys\": [";
            let mut left = socket.write_all(head.as_bytes()).await;
            while left.is_ok() {
                left = socket.write_all(&[b' '; 4096]).await;
            }
            return;
        }
        Mood::Redirecting => with(
            "302 Found",
            json,
            &format!("Location: {issuer}/elsewhere\r\n"),
        ),
        Mood::Html => with("200 OK", "text/html", ""),
        Mood::Failing => with("500 Internal Server Error", json, ""),
    };
    let _ = socket.write_all(text.as_bytes()).await;
}

/// A key pair of an issuer.
pub(crate) struct Key {
    /// The key id.
    pub(crate) kid: String,
    /// The private half.
    pub(crate) private: EncodingKey,
    point: Vec<u8>,
}

impl Key {
    /// A new key on P-256.
    pub(crate) fn new(kid: &str) -> Self {
        let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(algorithm, &SystemRandom::new()).unwrap();
        let pair = EcdsaKeyPair::from_pkcs8(algorithm, pkcs8.as_ref()).unwrap();
        Self {
            kid: kid.to_owned(),
            private: EncodingKey::from_ec_der(pkcs8.as_ref()),
            point: pair.public_key().as_ref().to_vec(),
        }
    }

    /// The public half as a JWK.
    pub(crate) fn public(&self) -> Value {
        let number = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        json!({"kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256", "kid": self.kid,
            "x": number(&self.point[1..33]), "y": number(&self.point[33..])})
    }

    /// An access token with `claims` (RFC 9068).
    pub(crate) fn sign(&self, claims: &Value) -> String {
        let header = json!({"alg": "ES256", "typ": "at+jwt", "kid": self.kid});
        self.sign_as(&header.to_string(), &claims.to_string())
    }

    /// A token with any header and any payload.
    pub(crate) fn sign_as(&self, header: &str, payload: &str) -> String {
        signed(header, payload, &self.private, Algorithm::ES256)
    }
}

/// A token with any header and payload, signed by any key.
pub(crate) fn signed(header: &str, payload: &str, key: &EncodingKey, by: Algorithm) -> String {
    let text = unsigned(header, payload);
    let signature = crypto::sign(text.as_bytes(), key, by).unwrap();
    format!("{text}.{signature}")
}

/// The two parts of a token that are signed.
pub(crate) fn unsigned(header: &str, payload: &str) -> String {
    let part = |text: &str| URL_SAFE_NO_PAD.encode(text);
    format!("{}.{}", part(header), part(payload))
}
