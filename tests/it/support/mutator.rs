//! Valid requests and their mutations: the generator behind `mutations` and `scripts/bench mutations`.

use serde_json::{Value, json};

/// Pseudo-random numbers, which a seed repeats (`SplitMix64`).
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound.max(1) as u64).unwrap()
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }

    fn pick<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }

    /// A random one of the alternatives between bars.
    fn word<'a>(&mut self, all: &'a str) -> &'a str {
        all.split('|')
            .nth(self.below(all.split('|').count()))
            .unwrap()
    }
}

/// The names that a request may use.
pub(crate) struct Place {
    /// The authority of the gateway.
    pub(crate) host: String,
    /// A session of the newest revision.
    pub(crate) session: String,
    /// A session of the revision that has batches.
    pub(crate) batches: String,
    /// A session that has ended.
    pub(crate) gone: String,
    /// The endpoint for the POSTs of an HTTP+SSE client.
    pub(crate) endpoint: String,
    /// An event id of `session`.
    pub(crate) event: String,
    /// The path before the endpoints of an authorization server; empty without one.
    pub(crate) oauth: String,
    /// A client that is registered there.
    pub(crate) client: String,
}

/// The framing of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Framing {
    /// `Content-Length`, or no body.
    Length,
    /// Chunks of that many bytes.
    Chunks(usize),
    /// These headers, correct or not.
    Told(String),
}

/// A request, valid or mutated.
pub(crate) struct Request {
    /// The method.
    pub(crate) method: String,
    /// True if the bytes are exactly one request, so that the connection stays in step.
    pub(crate) is_sound: bool,
    /// True if the body or the query has parameters.
    is_form: bool,
    target: String,
    version: &'static str,
    headers: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
    framing: Framing,
}

impl Request {
    /// A valid request with up to three mutations.
    pub(crate) fn random(dice: &mut Dice, place: &Place) -> Self {
        let mut request = Self::valid(dice, place);
        for _ in 0..dice.below(4) {
            match dice.below(10) {
                0..=3 if request.is_form => request.mutate_form(dice, place),
                0..=3 => request.mutate_json(dice),
                4 => mutate_bytes(&mut request.body, dice),
                5..=7 => request.mutate_header(dice, place),
                8 => request.mutate_line(dice, place),
                _ => request.mutate_framing(dice),
            }
        }
        request
    }

    fn valid(dice: &mut Dice, place: &Place) -> Self {
        let mut request = match dice.below(40) {
            _ if !place.oauth.is_empty() && dice.below(4) == 0 => Self::oauth(dice, place),
            // Rare requests: they start a child, or open a session without one.
            0 if dice.below(8) == 0 => Self::post("/mcp", &initialize(dice)),
            1 if dice.below(40) == 0 => Self::get("/sse", "text/event-stream"),
            0..=3 => Self::get("/mcp", "text/event-stream").with("Mcp-Session-Id", &place.session),
            4..=5 => Self::get("/mcp", "text/event-stream")
                .with("Mcp-Session-Id", &place.session)
                .with("Last-Event-ID", &place.event),
            6 => Self::bare("DELETE", "/mcp").with("Mcp-Session-Id", &place.gone),
            7 => Self::bare("OPTIONS", "/mcp")
                .with("Origin", &format!("http://{}", place.host))
                .with("Access-Control-Request-Method", "POST"),
            8 => Self::get(dice.word("/mcp|/livez|/readyz|/"), "text/html"),
            9..=12 => Self::post(&place.endpoint, &message(dice)),
            13..=17 => {
                let items: Vec<_> = (0..=dice.below(4)).map(|_| message(dice)).collect();
                Self::post("/mcp", &Value::from(items)).with("Mcp-Session-Id", &place.batches)
            }
            _ => Self::post("/t/local/main/mcp", &message(dice))
                .with("Mcp-Session-Id", &place.session)
                .with("MCP-Protocol-Version", "2025-11-25"),
        };
        request
            .headers
            .insert(0, ("Host".into(), place.host.clone().into()));
        request
    }

    /// A request to the authorization server.
    fn oauth(dice: &mut Dice, place: &Place) -> Self {
        let below = |path: &str| format!("{}/{path}", place.oauth);
        let fill = |text: &str| text.replace("{client}", &place.client);
        let form = |path: &str, text: &str| {
            let mut request = Self::bare("POST", &below(path))
                .with("Content-Type", "application/x-www-form-urlencoded");
            (request.body, request.is_form) = (fill(text).into_bytes(), true);
            request
        };
        match dice.below(16) {
            0..=3 => form("token", dice.word(TOKEN_FORMS)),
            4 => form(
                "revoke",
                "token=x&token_type_hint=refresh_token&client_id={client}",
            ),
            5 => form("login", "form=x&username=ada&password=no"),
            6 => form("consent", "form=x&decision=allow"),
            7 => form("authorize", AUTHORIZE),
            8..=10 => {
                let target = format!("{}?{}", below("authorize"), fill(AUTHORIZE));
                let mut request = Self::get(&target, "text/html");
                request.is_form = true;
                request
            }
            11 => Self::post(
                &below("register"),
                &json!({
                "client_name": "it", "redirect_uris": ["http://127.0.0.1:9/cb"], "grant_types":
                ["authorization_code", "refresh_token"], "token_endpoint_auth_method": "none"}),
            ),
            12 => Self::get(&below("jwks"), "*/*"),
            13 => Self::get(&below(&format!("register/{}", place.client)), "*/*")
                .with("Authorization", "Bearer x"),
            14 => Self::get(&below("callback/x?code=c&state=s"), "text/html"),
            _ => Self::get(dice.word(WELL_KNOWN), "*/*"),
        }
    }

    fn bare(method: &str, target: &str) -> Self {
        Self {
            method: method.to_owned(),
            is_sound: true,
            is_form: false,
            target: target.to_owned(),
            version: "HTTP/1.1",
            headers: Vec::new(),
            body: Vec::new(),
            framing: Framing::Length,
        }
    }

    fn get(target: &str, accept: &str) -> Self {
        Self::bare("GET", target).with("Accept", accept)
    }

    fn post(target: &str, body: &Value) -> Self {
        let mut request = Self::bare("POST", target)
            .with("Content-Type", "application/json")
            .with("Accept", "application/json, text/event-stream");
        request.body = body.to_string().into_bytes();
        request
    }

    fn with(mut self, name: &str, value: &str) -> Self {
        self.headers
            .push((name.to_owned(), value.as_bytes().to_owned()));
        self
    }

    /// True if a header names this session.
    pub(crate) fn names(&self, session: &str) -> bool {
        self.headers
            .iter()
            .any(|(_, value)| value == session.as_bytes())
    }

    /// The bytes on the wire.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = format!("{} {} {}\r\n", self.method, self.target, self.version).into_bytes();
        for (name, value) in &self.headers {
            out.extend([name.as_bytes(), b": ", value, b"\r\n"].concat());
        }
        let length = format!("Content-Length: {}\r\n", self.body.len());
        let (told, body) = match &self.framing {
            Framing::Length if self.body.is_empty() && self.method != "POST" => {
                ("", self.body.clone())
            }
            Framing::Length => (&*length, self.body.clone()),
            Framing::Chunks(size) => ("Transfer-Encoding: chunked\r\n", chunked(&self.body, *size)),
            Framing::Told(headers) => (&**headers, self.body.clone()),
        };
        [&out, told.as_bytes(), b"\r\n", &body].concat()
    }

    fn mutate_json(&mut self, dice: &mut Dice) {
        match serde_json::from_slice::<Value>(&self.body) {
            Ok(value) => self.body = mutated(value, dice).into_bytes(),
            Err(_) => mutate_bytes(&mut self.body, dice),
        }
    }

    /// Changes a parameter of the body, or of the query.
    fn mutate_form(&mut self, dice: &mut Dice, place: &Place) {
        let (path, query) = self.target.split_once('?').unwrap_or((&self.target, ""));
        let text = String::from_utf8_lossy(&self.body).into_owned();
        let text = if query.is_empty() { &text } else { query };
        let mut pairs: Vec<String> = text.split('&').map(str::to_owned).collect();
        let at = dice.below(pairs.len());
        let name = pairs[at].split('=').next().unwrap_or_default().to_owned();
        let value = dice.word(VALUES).replace("{client}", &place.client);
        match dice.below(6) {
            0 => drop(pairs.remove(at)),
            1 => pairs.push(pairs[at].clone()),
            2 => pairs.push(format!("{}={value}", dice.word(PARAMETERS))),
            3 if dice.below(8) == 0 => pairs = vec![pairs.join("&"); 1 + dice.below(40)],
            4 if dice.below(8) == 0 => {
                pairs[at] = format!("{name}={}", "a".repeat(dice.below(70_000)));
            }
            _ => pairs[at] = format!("{name}={value}"),
        }
        let text = pairs.join("&");
        if query.is_empty() {
            self.body = text.into_bytes();
        } else {
            self.target = format!("{path}?{text}");
        }
    }

    fn mutate_header(&mut self, dice: &mut Dice, place: &Place) {
        let (name, values) = dice.pick(&HEADERS);
        let at = self.headers.iter().position(|(other, _)| other == name);
        let value = dice.word(values).replace("{session}", &place.session);
        let value = value
            .replace("{gone}", &place.gone)
            .replace("{host}", &place.host);
        let mut value = value.replace("{event}", &place.event).into_bytes();
        match (dice.below(8), at) {
            (0, Some(at)) => drop(self.headers.remove(at)),
            (1, Some(at)) => self.headers.push(self.headers[at].clone()),
            (2, Some(at)) => mutate_bytes(&mut self.headers[at].1, dice),
            (3, _) => {
                mutate_bytes(&mut value, dice);
                self.headers.push(((*name).to_owned(), value));
            }
            (4, _) => self.headers.push(((*name).to_owned(), value)),
            (5, _) if dice.below(8) == 0 => {
                let count = *dice.pick(&[90, 101, 120]);
                let pad = |n| (format!("X-{n}"), vec![b'a'; 8]);
                self.headers.extend((0..count).map(pad));
            }
            (6, _) if dice.below(8) == 0 => {
                let size = *dice.pick(&[8 << 10, 20 << 10, 70 << 10]);
                self.headers.push(((*name).to_owned(), vec![b'a'; size]));
            }
            (7, _) if dice.below(4) == 0 => {
                // A blank before the colon, a folded line, an invalid name.
                let odd = dice.word("Accept |A\r\n b|\u{e9}||a b|\t|@:");
                self.headers.push((odd.to_owned(), value));
                self.is_sound = false;
            }
            (_, Some(at)) => self.headers[at].1 = value,
            (_, None) => self.headers.push(((*name).to_owned(), value)),
        }
        // A control character may end a field or the head.
        let is_plain = |value: &Vec<u8>| value.iter().all(|byte| *byte >= 0x20 && *byte != 0x7f);
        self.is_sound &= self.headers.iter().all(|(_, value)| is_plain(value));
        let frames = ["Transfer-Encoding", "Content-Length", "Connection"];
        self.is_sound &= !frames.contains(name);
    }

    fn mutate_line(&mut self, dice: &mut Dice, place: &Place) {
        match dice.below(3) {
            0 => {
                dice.word(METHODS).clone_into(&mut self.method);
                // No body follows, regardless of the headers.
                self.is_sound &= !["HEAD", "CONNECT", "PRI", "", "G ET"].contains(&&*self.method);
            }
            1 => {
                let target = dice.word(TARGETS).replace("{host}", &place.host);
                self.target = target.replace("{session}", &place.session);
                if dice.below(40) == 0 {
                    self.target += &"a".repeat(*dice.pick(&[8000, 9000, 70_000]));
                }
                self.is_sound &= !self.target.contains(' ') && !self.target.is_empty();
            }
            _ => {
                self.version = dice.word("HTTP/1.0|HTTP/1.2|HTTP/2.0|http/1.1|");
                self.is_sound = false;
            }
        }
    }

    fn mutate_framing(&mut self, dice: &mut Dice) {
        let length = self.body.len();
        if dice.below(3) == 0 {
            self.framing = Framing::Chunks(1 + dice.below(64));
            return;
        }
        let told = [
            format!("Content-Length: {}\r\n", length + 1),
            format!("Content-Length: {}\r\n", length.saturating_sub(1)),
            format!("Content-Length: {length}\r\nContent-Length: {length}\r\n"),
            format!("Content-Length: {length}\r\nContent-Length: 0\r\n"),
            format!("Content-Length: +{length}\r\n"),
            "Content-Length: -1\r\n".to_owned(),
            "Content-Length: 4194305\r\n".to_owned(),
            "Content-Length: 99999999999999999999999\r\n".to_owned(),
            format!("Content-Length: {length}\r\nTransfer-Encoding: chunked\r\n"),
            "Transfer-Encoding: chunked\r\n".to_owned(),
            "Transfer-Encoding: gzip, chunked\r\n".to_owned(),
            "Transfer-Encoding: chunked, identity\r\n".to_owned(),
            String::new(),
        ];
        self.framing = Framing::Told(dice.pick(&told).clone());
        self.is_sound = false;
        if dice.below(2) == 0 {
            self.body = chunked(&self.body, 1 + dice.below(64));
            mutate_bytes(&mut self.body, dice);
        }
    }
}

fn chunked(body: &[u8], size: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for chunk in body.chunks(size) {
        out.extend(format!("{:x}\r\n", chunk.len()).into_bytes());
        out.extend([chunk, b"\r\n"].concat());
    }
    out.extend(b"0\r\n\r\n");
    out
}

fn initialize(dice: &mut Dice) -> Value {
    let revision = dice.word("2025-11-25|2025-06-18|2025-03-26|2024-11-05");
    json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": revision, "clientInfo": {"name": "it", "version": "1"},
        "capabilities": {"elicitation": {}, "sampling": {}, "roots": {"listChanged": true}}}})
}

/// A random message of a session.
fn message(dice: &mut Dice) -> Value {
    let id = [json!(dice.below(100)), json!("a"), json!(-1)];
    let id = dice.pick(&id).clone();
    let call = |tool: &str, args: Value| {
        json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {
            "name": tool, "arguments": args, "_meta": {"progressToken": "t"}}})
    };
    let ask = |method: &str, params: Value| json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
    let tell =
        |method: &str, params: Value| json!({"jsonrpc": "2.0", "method": method, "params": params});
    match dice.below(16) {
        0..=3 => call("echo", json!({"text": "hello"})),
        4 => call("slow", json!({"n": dice.below(3), "ms": 1})),
        5 => call("burst", json!({"n": dice.below(3), "text": "x"})),
        6 => call("error", json!({})),
        7 => ask("tools/list", json!({"cursor": "10"})),
        8 => ask("ping", json!({})),
        9 => ask("resources/read", json!({"uri": "test://one"})),
        10 => tell(
            "notifications/cancelled",
            json!({"requestId": 7, "reason": "no"}),
        ),
        11 => tell(
            "notifications/progress",
            json!({"progressToken": 1, "progress": 1}),
        ),
        12 => tell("notifications/roots/list_changed", json!({})),
        13 => json!({"jsonrpc": "2.0", "id": id, "result": {"roots": []}}),
        14 => json!({"jsonrpc": "2.0", "id": id, "error": {"code": -1, "message": "no"}}),
        _ => ask("tasks/result", json!({"taskId": "t", "task": {"ttl": 1}})),
    }
}

/// The JSON pointers of all values of a document.
fn pointers(value: &Value, here: &str, out: &mut Vec<String>) {
    out.push(here.to_owned());
    match value {
        Value::Object(members) => {
            for (key, value) in members {
                pointers(
                    value,
                    &format!("{here}/{}", key.replace('~', "~0").replace('/', "~1")),
                    out,
                );
            }
        }
        Value::Array(items) => {
            for (at, value) in items.iter().enumerate() {
                pointers(value, &format!("{here}/{at}"), out);
            }
        }
        _ => {}
    }
}

/// A text that replaces a value.
fn raw(dice: &mut Dice) -> String {
    match dice.below(30) {
        0 => format!("\"{}\"", "x".repeat(*dice.pick(&[1100, 5000, 60_000]))),
        1 => format!("{}{}", "[".repeat(140), "]".repeat(140)),
        2 => "9".repeat(400),
        // JSON that most parsers refuse: such a call is answered at its deadline.
        3 => dice.word(r#""\ud800"|1e999"#).to_owned(),
        _ => dice.word(RAW).to_owned(),
    }
}

/// The text of a document with one mutation.
fn mutated(mut value: Value, dice: &mut Dice) -> String {
    let mut all = Vec::new();
    pointers(&value, "", &mut all);
    let at = dice.pick(&all).clone();
    let raw = raw(dice);
    let key = at.rsplit('/').next().unwrap_or_default().replace("~1", "/");
    let member = format!("\"{key}\":");
    match dice.below(8) {
        0 | 1 => {
            *value.pointer_mut(&at).unwrap() = MARK.into();
            value.to_string().replace(&format!("\"{MARK}\""), &raw)
        }
        2 => {
            let above = at.rsplit_once('/').map_or("", |(above, _)| above);
            if let Some(Value::Object(members)) = value.pointer_mut(above) {
                members.remove(&key);
            }
            value.to_string()
        }
        3 => value
            .to_string()
            .replacen(&member, &format!("{member}{raw},{member}"), 1),
        4 => {
            let first = key.chars().next().map_or(0, u32::from);
            let names = [
                key.to_uppercase(),
                format!("\\u{first:04x}{}", key.get(1..).unwrap_or_default()),
                key.replace('s', "\u{17f}"),
                format!("{key}\\u0000"),
                String::new(),
            ];
            value
                .to_string()
                .replacen(&member, &format!("\"{}\":", dice.pick(&names)), 1)
        }
        5 => value.to_string().replacen(
            '{',
            &format!("{{\"{}\":{raw},", dice.word(KEYS)),
            1 + dice.below(3),
        ),
        6 => {
            let other = value.pointer(dice.pick::<String>(&all)).unwrap().clone();
            *value.pointer_mut(&at).unwrap() = other;
            value.to_string()
        }
        _ => {
            let text = value
                .to_string()
                .replace(',', dice.word(",\r\n\t | , |,|,,"));
            let (before, behind) = *dice.pick(&[
                ("[", "]"),
                (" \n", "\n"),
                ("\u{feff}", ""),
                ("", "{}"),
                ("{\"a\":", "}"),
            ]);
            format!("{before}{text}{behind}")
        }
    }
}

fn mutate_bytes(bytes: &mut Vec<u8>, dice: &mut Dice) {
    let (from, count) = (dice.below(bytes.len() + 1), 1 + dice.below(8));
    let to = (from + count).min(bytes.len());
    match dice.below(6) {
        0 if !bytes.is_empty() => {
            let at = dice.below(bytes.len());
            bytes[at] ^= 1 << dice.below(8);
        }
        1 => drop(bytes.drain(from..to)),
        2 => bytes.truncate(from),
        3 => {
            let copy = bytes[from..to].repeat(1 + dice.below(4));
            bytes.splice(from..from, copy);
        }
        _ => {
            let any: Vec<u8> = (0..count).map(|_| dice.byte()).collect();
            bytes.splice(from..to, any);
        }
    }
}

const MARK: &str = "@mark@";

/// Alternatives between bars; an empty one counts, too.
const RAW: &str = r#"null|true|0|-0|-1|1.5|1e308|18446744073709551616|""|"\u0000"|"\u2028\r\n"|[]|{}|[{}]|"2.0"|"2025-03-26"|"2026-07-28"|"initialize"|"ping"|"notifications/initialized"|nul|"	""#;

const KEYS: &str = "id|method|params|result|error|jsonrpc|_meta|name|uri|progressToken|task|\
    io.modelcontextprotocol/protocolVersion";

const METHODS: &str = "GET|POST|DELETE|HEAD|OPTIONS|PUT|PATCH|TRACE|CONNECT|BREW|get|PRI||G ET";

const TARGETS: &str = "/mcp|/t/local/main/mcp|/sse|/messages|/messages?session_id={session}|/livez|\
    /readyz|/metrics|/|*||/t/x/main/mcp|/t/local/x/mcp|/t/local/main/mcp%00|//mcp|/x/../mcp|\
    /mcp?a=b#c|http://{host}/mcp|http://evil.test/mcp|{host}|/m cp|/\u{e9}";

const TOKEN_FORMS: &str = "grant_type=authorization_code&code=c&redirect_uri=http%3A%2F%2F127.0.0.1%3A9%2Fcb&\
    code_verifier=vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv&client_id={client}|\
    grant_type=refresh_token&refresh_token=r&client_id={client}|\
    grant_type=client_credentials&client_id={client}&client_secret=s";

const AUTHORIZE: &str = "response_type=code&client_id={client}&redirect_uri=http%3A%2F%2F127.0.0.1%3A9%2Fcb&\
    code_challenge=E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM&code_challenge_method=S256&state=s&scope=a";

const WELL_KNOWN: &str = "/.well-known/oauth-authorization-server|/.well-known/openid-configuration|\
    /.well-known/oauth-authorization-server/t/acme|/t/acme/.well-known/openid-configuration|\
    /.well-known/oauth-protected-resource/t/acme/main/mcp|/.well-known/oauth-protected-resource";

/// Values of parameters.
const VALUES: &str = "|x|{client}|%|%zz|%00|%ff|%C3%BC|a+b|code|S256|plain|none|https%3A%2F%2Fapp.test%2Fc.json|\
    https%3A%2F%2F127.0.0.1%2Fc.json|http%3A%2F%2F127.0.0.1%3A1%2Fcb|javascript%3Aalert(1)|../..|\u{e9}";

const PARAMETERS: &str = "resource|scope|state|prompt|client_id|client_secret|client_assertion|code|nonce|request|id_token_hint|";

const HEADERS: [(&str, &str); 15] = [
    (
        "Authorization",
        "Bearer x|Bearer|Basic Yzp4|Basic x|bearer a.b.c|Bearer eyJhbGciOiJub25lIn0.e30.|Digest x|",
    ),
    (
        "Mcp-Session-Id",
        "{session}|{gone}||nobody|{session}, {session}|\u{e9}",
    ),
    (
        "MCP-Protocol-Version",
        "2025-11-25|2025-06-18|2025-03-26|2024-11-05|2026-07-28|2099-01-01|1|",
    ),
    (
        "Last-Event-ID",
        "{event}|{session}||0|AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
    ),
    (
        "Accept",
        "*/*|application/json|text/event-stream|text/html|*/*;q=0|application/*;q=nan|,;,|",
    ),
    (
        "Content-Type",
        "text/plain|application/json; charset=utf-16|APPLICATION/JSON||application/jsonp",
    ),
    (
        "Origin",
        "http://{host}|null|http://evil.test|https://{host}||http://{host}.evil.test",
    ),
    (
        "Host",
        "{host}|evil.test||{host}:80|user@{host}|[::1|{host}/x|127.0.0.1:99999",
    ),
    ("Content-Encoding", "gzip|identity|identity, br|"),
    ("Expect", "100-continue|200-ok|"),
    ("Connection", "close|keep-alive|upgrade|Mcp-Session-Id|"),
    ("Upgrade", "websocket|h2c"),
    ("Transfer-Encoding", "chunked|identity|"),
    ("X-Forwarded-For", "6.6.6.6||a, b, c|::1"),
    ("Access-Control-Request-Method", "POST|BREW|"),
];
