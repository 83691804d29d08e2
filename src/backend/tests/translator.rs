use futures_util::FutureExt;

use super::super::{
    era::{PROBE_WAIT, push_probe},
    id_blocks::IdLease,
    translator::*,
};

/// A translator and the lines that it has written to either side.
struct Both {
    translator: Translator,
    known: Arc<KnownEra>,
    now: Instant,
    server: BytesMut,
    owner: VecDeque<Bytes>,
}

impl Both {
    fn new(opening: Opening) -> Self {
        Self::of(opening, false)
    }

    fn of(opening: Opening, is_for_modern: bool) -> Self {
        Self::isolated(opening, (is_for_modern, Isolation::Session))
    }

    fn isolated(opening: Opening, sessions: (bool, Isolation)) -> Self {
        let known = Arc::new(KnownEra::default());
        Self {
            translator: Translator::new("acme", opening, sessions, Arc::clone(&known)),
            known,
            now: Instant::now(),
            server: BytesMut::new(),
            owner: VecDeque::new(),
        }
    }

    /// Translates large lines, until one has no turn.
    fn large(&mut self) {
        while self.translator.has_large()
            && let Some(turn) = self.translator.turn().now_or_never()
        {
            let (server, owner) = (&mut self.server, &mut self.owner);
            self.translator.large(turn, server, owner, self.now);
        }
    }

    /// What the server gets when its owner writes a line.
    fn owner_writes(&mut self, line: &str) -> String {
        let inbox = self.translator.inbox();
        inbox.extend_from_slice(line.as_bytes());
        inbox.extend_from_slice(b"\n");
        self.translator
            .flush(&mut self.server, &mut self.owner, self.now);
        self.large();
        String::from_utf8(self.server.split().to_vec()).unwrap()
    }

    /// What either side gets when the server writes a line.
    fn server_writes(&mut self, line: &str) -> (String, Vec<String>) {
        let line = Bytes::copy_from_slice(line.as_bytes());
        self.translator
            .line(line, &mut self.server, &mut self.owner, self.now);
        self.large();
        let owner = self.owner.drain(..);
        let owner = owner.map(|line| String::from_utf8(line.to_vec()).unwrap());
        (
            String::from_utf8(self.server.split().to_vec()).unwrap(),
            owner.collect(),
        )
    }
}

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{"elicitation":{}},"clientInfo":{"name":"c","version":"1"}}}"#;
const DISCOVERED: &str = r#""result":{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"s","version":"2"}},"instructions":"i"}"#;
const INITIALIZED: &str = r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"2"},"instructions":"i"}}"#;

fn answer(id: &str, outcome: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},{outcome}}}"#)
}

#[test]
fn a_session_based_server_is_left_to_its_owner() {
    let mut both = Both::new(Opening::Legacy);
    assert_eq!(both.owner_writes(INITIALIZE), format!("{INITIALIZE}\n"));
    assert!(!both.translator.is_over());
    let result = answer("1", r#""result":{}"#);
    assert_eq!(both.server_writes(&result), (String::new(), vec![result]));
    assert!(both.translator.is_over());
    assert_eq!(both.known.legacy.get(), Some(true));
}

#[test]
fn a_server_that_refuses_initialize_is_asked_whether_it_is_modern() {
    let probe = std::str::from_utf8(PROBE).unwrap();
    let refused = answer("1", r#""error":{"code":-32601,"message":"no"}"#);
    let mut both = Both::new(Opening::Legacy);
    both.owner_writes(INITIALIZE);
    let (asked, told) = both.server_writes(&refused);
    assert!(told.is_empty());
    let discover = format!(r#""id":{probe},"method":"server/discover""#);
    assert!(asked.contains(&discover), "{asked}");
    assert_eq!(
        both.server_writes(&answer(probe, DISCOVERED)).1,
        [INITIALIZED]
    );
    assert_eq!(both.known.legacy.get(), Some(false));
    assert_eq!(both.known.modern.get(), Some(true));

    // One that is not has refused, now and the next time.
    let mut both = Both::new(Opening::Legacy);
    both.owner_writes(INITIALIZE);
    both.server_writes(&refused);
    let neither = answer(probe, r#""error":{"code":-32601,"message":"no"}"#);
    assert_eq!(
        both.server_writes(&neither),
        (String::new(), vec![refused.clone()])
    );
    assert_eq!(both.known.modern.get(), Some(false));
    for (known, code, is_asked) in [
        (None, -32601, true),
        (None, -32022, true),
        (None, -32603, false),
        (None, -32000, false),
        (Some(false), -32601, false),
    ] {
        let mut both = Both::new(Opening::Legacy);
        both.known.modern.set(known);
        both.owner_writes(INITIALIZE);
        let refused = answer("1", &format!(r#""error":{{"code":{code},"message":"no"}}"#));
        let (asked, told) = both.server_writes(&refused);
        assert_eq!(
            (!asked.is_empty(), told.is_empty()),
            (is_asked, is_asked),
            "{code}"
        );
        assert_eq!(both.known.modern.get(), None, "it may have changed");
    }
}

/// It was lost with a server that ended at the question behind it, or had no answer to that.
#[tokio::test]
async fn a_refusal_is_told_without_an_answer_to_the_question_behind_it() {
    let refused = answer("1", r#""error":{"code":-32602,"message":"no"}"#);
    let asked = |clock: Duration| {
        let mut both = Both::new(Opening::Legacy);
        both.translator = both.translator.within(clock);
        assert_eq!(both.translator.closed(), None);
        both.owner_writes(INITIALIZE);
        let (asked, told) = both.server_writes(&refused);
        assert!(asked.contains("server/discover") && told.is_empty());
        both
    };
    let mut context = Context::from_waker(std::task::Waker::noop());
    let mut ends = asked(Duration::ZERO);
    assert!(ends.translator.poll_silence(&mut context).is_pending());
    assert_eq!(ends.translator.closed().unwrap(), refused);
    let mut is_silent = asked(Duration::from_nanos(1));
    let told = std::future::poll_fn(|cx| is_silent.translator.poll_silence(cx)).await;
    assert_eq!(told, refused);
    for (mut both, known) in [(ends, Some(false)), (is_silent, None)] {
        assert!(both.translator.is_over());
        assert_eq!(both.known.modern.get(), known);
        assert_eq!(both.translator.closed(), None, "it was told");
        assert!(both.translator.poll_silence(&mut context).is_pending());
    }
}

/// One that needed longer than for a probe was of no use to clients with sessions.
#[tokio::test]
async fn the_question_behind_a_refusal_has_nearly_the_time_of_the_start() {
    let refused = answer("1", r#""error":{"code":-32601,"message":"no"}"#);
    for (clock, is_told) in [(2 * PROBE_WAIT, true), (10 * PROBE_WAIT, false)] {
        let mut both = Both::new(Opening::Legacy);
        both.translator = both.translator.within(clock);
        let until = both.translator.until.unwrap();
        assert!(until < Instant::now() + clock, "the refusal comes in time");
        // As if it had been asked, and its owner had begun, at that time.
        let waited = 3 * PROBE_WAIT;
        both.translator.until = Some(until - waited);
        both.now -= waited;
        both.owner_writes(INITIALIZE);
        both.server_writes(&refused);
        let mut context = Context::from_waker(std::task::Waker::noop());
        let told = both.translator.poll_silence(&mut context);
        assert_eq!(told.is_ready(), is_told, "{clock:?}");
        let probe = std::str::from_utf8(PROBE).unwrap();
        let (_, told) = both.server_writes(&answer(probe, DISCOVERED));
        assert_eq!(told == [INITIALIZED], !is_told, "{told:?}");
    }
}

#[test]
fn the_first_answer_of_a_slow_server_decides() {
    let probe = std::str::from_utf8(PROBE).unwrap();
    let mut line = BytesMut::new();
    push_probe(&mut line);
    assert!(line.starts_with(format!(r#"{{"jsonrpc":"2.0","id":{probe},"#).as_bytes()));

    let mut both = Both::new(Opening::Undecided);
    assert_eq!(both.owner_writes(INITIALIZE), format!("{INITIALIZE}\n"));
    let refused = answer(probe, r#""error":{"code":-32602,"message":"no"}"#);
    assert_eq!(both.server_writes(&refused), (String::new(), vec![]));
    let result = answer("1", r#""result":{}"#);
    assert_eq!(both.server_writes(&result), (String::new(), vec![result]));
    assert!(both.translator.is_over());

    // One that never answers the probe is not asked again.
    let mut both = Both::new(Opening::Undecided);
    both.owner_writes(INITIALIZE);
    both.server_writes(&answer("1", r#""result":{}"#));
    assert_eq!(both.known.modern.get(), Some(false));

    let mut both = Both::new(Opening::Undecided);
    both.owner_writes(INITIALIZE);
    let (_, told) = both.server_writes(&answer(probe, DISCOVERED));
    assert_eq!(told, [INITIALIZED]);
    assert_eq!(both.known.modern.get(), Some(true));
    let call = both.owner_writes(r#"{"jsonrpc":"2.0","id":2,"method":"tools/list"}"#);
    assert!(
        call.contains("io.modelcontextprotocol/protocolVersion"),
        "{call}"
    );

    // It may answer before its owner has said anything.
    let mut both = Both::new(Opening::Undecided);
    both.server_writes(&answer(probe, DISCOVERED));
    assert!(both.owner_writes(INITIALIZE).contains("server/discover"));
    let (_, told) = both.server_writes(&answer("1", DISCOVERED));
    assert_eq!(told, [INITIALIZED]);
}

#[test]
fn a_server_that_is_of_another_era_than_was_known_gets_initialize() {
    let mut both = Both::new(Opening::Modern);
    both.known.modern.set(Some(true));
    both.known.legacy.set(Some(false));
    assert!(both.owner_writes(INITIALIZE).contains("server/discover"));
    let refused = answer("1", r#""error":{"code":-32601,"message":"no"}"#);
    assert_eq!(
        both.server_writes(&refused),
        (format!("{INITIALIZE}\n"), vec![])
    );
    assert_eq!(both.known.modern.get(), None);
    let result = answer("1", r#""result":{}"#);
    assert_eq!(both.server_writes(&result).1, [result]);
    assert_eq!(both.known.legacy.get(), Some(true));

    let mut both = Both::new(Opening::ModernOnly);
    both.owner_writes(INITIALIZE);
    assert_eq!(both.server_writes(&refused), (String::new(), vec![refused]));
}

/// A session with a modern server.
fn begun() -> Both {
    let mut both = Both::new(Opening::Modern);
    both.owner_writes(INITIALIZE);
    both.server_writes(&answer("1", DISCOVERED));
    both
}

#[test]
fn requests_say_what_the_server_has_to_know_and_results_only_what_the_client_knows() {
    let mut both = begun();
    let meta = r#""io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"elicitation":{}},"io.modelcontextprotocol/clientInfo":{"name":"c","version":"1"},"io.modelcontextprotocol/logLevel":"info""#;
    for (request, expected) in [
        (
            r#"{"jsonrpc":"2.0","id":2,"method":"tools/list"}"#,
            format!(
                r#"{{"params":{{"_meta":{{{meta}}}}},"jsonrpc":"2.0","id":2,"method":"tools/list"}}"#
            ),
        ),
        (
            r#"{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"x"}}"#,
            format!(
                r#"{{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{{"_meta":{{{meta}}},"name":"x"}}}}"#
            ),
        ),
        (
            r#"{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"x","_meta":{"progressToken":4}}}"#,
            format!(
                r#"{{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{{"name":"x","_meta":{{{meta},"progressToken":4}}}}}}"#
            ),
        ),
        (
            r#"{"jsonrpc":"2.0","id":5,"method":"x","params":{"_meta":{}}}"#,
            format!(r#"{{"jsonrpc":"2.0","id":5,"method":"x","params":{{"_meta":{{{meta}}}}}}}"#),
        ),
    ] {
        assert_eq!(both.owner_writes(request), format!("{expected}\n"));
    }
    let result =
        r#""result":{"resultType":"complete","tools":[ 1 ],"ttlMs":5,"cacheScope":"public"}"#;
    let (_, told) = both.server_writes(&answer("2", result));
    assert_eq!(told, [answer("2", r#""result":{"tools":[ 1 ]}"#)]);
    let (_, told) = both.server_writes(&answer("3", r#""result":{}"#));
    assert_eq!(told, [answer("3", r#""result":{}"#)]);
    let (_, told) = both.server_writes(&answer("4", r#""result":{"resultType":"task"}"#));
    assert!(told[0].contains("-32603"), "{told:?}");
    let error = answer("5", r#""error":{"code":-32021,"message":"m"}"#);
    assert_eq!(both.server_writes(&error).1, [error]);
}

#[test]
fn what_this_era_does_not_know_is_answered_for_the_server() {
    let mut both = begun();
    let ping = both.owner_writes(r#"{"jsonrpc":"2.0","id":2,"method":"ping"}"#);
    assert!(
        ping.contains(r#""id":2,"method":"server/discover""#),
        "{ping}"
    );
    assert_eq!(
        both.server_writes(&answer("2", DISCOVERED)).1,
        [answer("2", r#""result":{}"#)]
    );

    let level =
        r#"{"jsonrpc":"2.0","id":3,"method":"logging/setLevel","params":{"level":"warning"}}"#;
    assert_eq!(both.owner_writes(level), "");
    assert_eq!(
        both.owner.pop_front().unwrap(),
        answer("3", r#""result":{}"#)
    );
    let call = both.owner_writes(r#"{"jsonrpc":"2.0","id":4,"method":"x"}"#);
    assert!(
        call.contains(r#""io.modelcontextprotocol/logLevel":"warning""#),
        "{call}"
    );

    for dropped in ["notifications/roots/list_changed", "notifications/progress"] {
        let line = format!(r#"{{"jsonrpc":"2.0","method":"{dropped}"}}"#);
        assert_eq!(both.owner_writes(&line), "");
    }
    let request = r#"{"jsonrpc":"2.0","id":1,"method":"roots/list"}"#;
    assert_eq!(both.server_writes(request), (String::new(), vec![]));
}

/// It was said in each further request, which servers refuse, and one of 4 MiB was 400 MiB in a hundred of them.
#[test]
fn a_level_that_no_server_knows_is_refused_and_not_said() {
    let set = |params: &str| {
        format!(r#"{{"jsonrpc":"2.0","id":3,"method":"logging/setLevel","params":{params}}}"#)
    };
    let mut both = begun();
    assert_eq!(both.owner_writes(&set(r#"{"level":"\u0065rror"}"#)), "");
    let told = both.owner.pop_front().unwrap();
    assert_eq!(told, answer("3", r#""result":{}"#));
    let long = format!(r#"{{"level":"{}"}}"#, "x".repeat(1000));
    for unknown in [
        r#"{"level":"warn"}"#,
        r#"{"level":["info"]}"#,
        r#"{"level":6}"#,
        "{}",
        &*long,
    ] {
        assert_eq!(both.owner_writes(&set(unknown)), "");
        let error = r#""error":{"code":-32602,"message":"no such log level"}"#;
        assert_eq!(both.owner.pop_front().unwrap(), answer("3", error));
        let call = both.owner_writes(r#"{"jsonrpc":"2.0","id":4,"method":"x"}"#);
        let level = r#""io.modelcontextprotocol/logLevel":"error""#;
        assert!(call.contains(level), "{unknown}: {call}");
    }
}

#[test]
fn a_server_asks_and_its_client_answers() {
    let mut both = begun();
    let call = r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"x"}}"#;
    let sent = both.owner_writes(call);
    let required = r#""result":{"resultType":"input_required","inputRequests":{"a\"":{"method":"elicitation/create","params":{"message":"m"}},"b":{"method":"roots/list"}},"requestState":"s"}"#;
    let (again, asks) = both.server_writes(&answer("7", required));
    assert_eq!(again, "");
    assert_eq!(
        asks,
        [
            r#"{"jsonrpc":"2.0","id":"7.1.0","method":"elicitation/create","params":{"message":"m"}}"#,
            r#"{"jsonrpc":"2.0","id":"7.1.1","method":"roots/list"}"#,
        ]
    );
    assert_eq!(
        both.owner_writes(&answer(r#""7.1.1""#, r#""result":{"roots":[]}"#)),
        ""
    );
    // A client that answers an elicitation with an error has cancelled it.
    let again = both.owner_writes(&answer(
        r#""7.1.0""#,
        r#""error":{"code":-1,"message":"no"}"#,
    ));
    let expected = sent.replace(r#""id":7,"#, r#""id":"7.1","#).replace(
        r#""params":{"#,
        r#""params":{"inputResponses":{"a\"":{"action":"cancel"},"b":{"roots":[]}},"requestState":"s","#,
    );
    assert_eq!(again, expected);
    // It may ask for nothing, and is called again at once; its state is the latest.
    let state = r#""result":{"resultType":"input_required","requestState":"t"}"#;
    let (again, told) = both.server_writes(&answer(r#""7.1""#, state));
    assert!(
        told.is_empty() && again.contains(r#""id":"7.2""#),
        "{again}"
    );
    assert!(again.contains(r#"{"requestState":"t","_meta""#), "{again}");
    // An answer to an earlier round is none.
    assert_eq!(
        both.server_writes(&answer("7", r#""result":{}"#)).1,
        [""; 0]
    );
    let (_, told) = both.server_writes(&answer(r#""7.2""#, r#""result":{"content":[]}"#));
    assert_eq!(told, [answer("7", r#""result":{"content":[]}"#)]);
    assert_eq!(
        both.server_writes(&answer(r#""7.2""#, r#""result":{}"#)).1,
        [""; 0]
    );
}

/// The work that the server had begun was lost.
#[test]
fn a_client_that_declares_nothing_lets_a_server_finish_later() {
    let initialize = INITIALIZE.replace(r#""elicitation":{}"#, "");
    let mut both = Both::new(Opening::Modern);
    both.owner_writes(&initialize);
    both.server_writes(&answer("1", DISCOVERED));
    let call =
        |id: u32| format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{}}}}"#);
    both.owner_writes(&call(7));
    let state = r#""result":{"resultType":"input_required","requestState":"t"}"#;
    let (again, told) = both.server_writes(&answer("7", state));
    assert!(
        told.is_empty() && again.contains(r#""id":"7.1""#),
        "{again}"
    );
    let (_, told) = both.server_writes(&answer(r#""7.1""#, r#""result":{"content":[]}"#));
    assert_eq!(told, [answer("7", r#""result":{"content":[]}"#)]);

    both.owner_writes(&call(8));
    let required =
        r#""result":{"resultType":"input_required","inputRequests":{"a":{"method":"roots/list"}}}"#;
    let (again, told) = both.server_writes(&answer("8", required));
    let why = "the server asks a client that cannot be asked";
    let error = format!(r#""error":{{"code":-32603,"message":"{why}"}}"#);
    assert_eq!((&*again, told), ("", vec![answer("8", &error)]));
    assert_eq!(both.translator.kept(), 0);
}

/// The large calls of one session took all room, and a client that could be asked was not.
#[test]
fn calls_of_clients_that_cannot_be_asked_leave_room_for_others() {
    let text = "x".repeat(200 << 10);
    let kept = |initialize: &str| {
        let mut both = Both::new(Opening::Modern);
        both.owner_writes(initialize);
        both.server_writes(&answer("1", DISCOVERED));
        for id in 2..100 {
            let sent = both.owner_writes(&format!(
                r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"arguments":{{"x":"{text}"}}}}}}"#
            ));
            assert!(sent.len() > text.len());
        }
        both.translator.kept() >> 20
    };
    let nothing = INITIALIZE.replace(r#""elicitation":{}"#, "");
    assert_eq!((kept(&nothing), kept(INITIALIZE)), (7, 15));
}

/// The large calls of one person at a shared child took all room, and nobody else could be asked.
#[test]
fn a_caller_at_a_shared_child_leaves_room_for_calls_of_others() {
    let mut both = Both::isolated(Opening::Modern, (false, Isolation::Tenant));
    both.owner_writes(INITIALIZE);
    both.server_writes(&answer("1", DISCOVERED));
    let ids = IdBlocks::new();
    let leases = [(1, "ada"), (2, "ada"), (3, "bob")]
        .map(|(session, caller)| IdLease::new(&ids, session, caller).unwrap());
    both.translator.know_callers(&ids);
    let first = leases.each_ref().map(|lease| *lease.ids().start());
    let text = "x".repeat(200 << 10);
    let call = |id: u64, text: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"arguments":{{"x":"{text}"}}}}}}"#
        )
    };
    for id in (0..50).flat_map(|n| [first[0] + n, first[1] + n]) {
        assert!(both.owner_writes(&call(id, &text)).len() > text.len());
    }
    assert_eq!(both.translator.kept() >> 20, 3, "of 16");
    both.owner_writes(&call(first[2], "x"));
    let required =
        r#""result":{"resultType":"input_required","inputRequests":{"a":{"method":"roots/list"}}}"#;
    for id in [first[0], first[2]] {
        let (_, told) = both.server_writes(&answer(&id.to_string(), required));
        assert!(told[0].contains("roots/list"), "{told:?}");
    }
    // Nor by what it answers.
    let long = format!(r#""result":{{"x":"{}"}}"#, "x".repeat(5 << 20));
    let again = both.owner_writes(&answer(&format!(r#""{}.1.0""#, first[0]), &long));
    let error = r#""error":{"code":-32603,"message":"the server asks for too much at once"}"#;
    let told = answer(&first[0].to_string(), error);
    assert_eq!(
        (&*again, both.owner.split_off(0)),
        ("", VecDeque::from([Bytes::from(told)]))
    );
    let short = r#""result":{"roots":[]}"#;
    let again = both.owner_writes(&answer(&format!(r#""{}.1.0""#, first[2]), short));
    assert!(again.contains(r#""roots":[]"#), "{again}");
}

/// 23 KB of such answers became 1 GiB of requests that wait.
#[test]
fn a_server_that_does_not_read_is_not_called_again_without_an_end() {
    let mut both = begun();
    let text = "x".repeat(200 << 10);
    for id in [7, 8] {
        let sent = both.owner_writes(&format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"arguments":{{"x":"{text}"}}}}}}"#
        ));
        assert!(sent.len() > text.len());
    }
    let state = r#""result":{"resultType":"input_required","requestState":"t"}"#;
    for call in [7, 8] {
        for round in 0..64 {
            let id = match round {
                0 => call.to_string(),
                round => format!(r#""{call}.{round}""#),
            };
            let line = Bytes::from(answer(&id, state));
            both.translator
                .line(line, &mut both.server, &mut both.owner, both.now);
        }
    }
    let waits = both.server.len();
    assert!((16 << 20..17 << 20).contains(&waits), "{waits}");
    let error = r#""error":{"code":-32603,"message":"the server does not read"}"#;
    assert_eq!(both.owner, [answer("8", error).as_bytes()]);
}

/// The text was that of a result that cannot be read, in which its author sought a mistake.
#[test]
fn a_server_that_asks_for_too_much_at_once_is_told_so() {
    let mut both = begun();
    both.owner_writes(r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"x"}}"#);
    let requests: Vec<String> = (0..17)
        .map(|key| format!(r#""{key}":{{"method":"roots/list"}}"#))
        .collect();
    let required = format!(
        r#""result":{{"resultType":"input_required","inputRequests":{{{}}}}}"#,
        requests.join(",")
    );
    let (again, told) = both.server_writes(&answer("7", &required));
    let error = r#""error":{"code":-32603,"message":"the server asks for too much at once"}"#;
    assert_eq!((&*again, told), ("", vec![answer("7", error)]));
}

#[test]
fn a_call_ends_with_an_error_where_its_client_cannot_answer() {
    let required = r#""result":{"resultType":"input_required","inputRequests":{"a":{"method":"sampling/createMessage","params":{}},"b":{"method":"roots/list"}}}"#;
    let mut both = begun();
    both.owner_writes(r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{}}"#);
    both.server_writes(&answer("7", required));
    let refused = answer(r#""7.1.0""#, r#""error":{"code":-1,"message":"no"}"#);
    assert_eq!(both.owner_writes(&refused), "");
    let told: Vec<Bytes> = both.owner.drain(..).collect();
    assert_eq!(told.len(), 2, "{told:?}");
    assert_eq!(
        told[0],
        r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"7.1.1"}}"#
    );
    assert!(told[1].starts_with(br#"{"jsonrpc":"2.0","id":7,"error":{"code":-32603,"#));

    // A list is no call that may be asked back, and other methods are none that clients answer.
    both.owner_writes(r#"{"jsonrpc":"2.0","id":8,"method":"tools/list"}"#);
    let (_, told) = both.server_writes(&answer("8", required));
    assert!(told[0].contains("-32603"), "{told:?}");
    both.owner_writes(r#"{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{}}"#);
    let other = required.replace("roots/list", "tools/list");
    let (_, told) = both.server_writes(&answer("9", &other));
    assert!(told[0].contains("-32603"), "{told:?}");

    // One that asks for nothing again and again is not called without an end.
    both.owner_writes(r#"{"jsonrpc":"2.0","id":10,"method":"tools/call","params":{}}"#);
    let state = r#""result":{"resultType":"input_required","requestState":"t"}"#;
    let mut id = "10".to_owned();
    let mut rounds = 0;
    let told = loop {
        let (again, told) = both.server_writes(&answer(&id, state));
        if again.is_empty() {
            break told;
        }
        rounds += 1;
        id = format!(r#""10.{rounds}""#);
    };
    assert_eq!(rounds, 64);
    assert!(told[0].contains("-32603"), "{told:?}");
}

#[test]
fn a_cancellation_reaches_the_request_that_the_server_works_on() {
    let cancelled = |id: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id}}}}}"#
        )
    };
    let mut both = begun();
    let call = r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{}}"#;
    both.owner_writes(call);
    assert_eq!(
        both.owner_writes(&cancelled("7")),
        format!("{}\n", cancelled("7"))
    );

    both.owner_writes(call);
    let required =
        r#""result":{"resultType":"input_required","inputRequests":{"a":{"method":"roots/list"}}}"#;
    both.server_writes(&answer("7", required));
    assert_eq!(
        both.owner_writes(&cancelled("7")),
        "",
        "the server does not work"
    );
    assert_eq!(both.owner.pop_front().unwrap(), cancelled(r#""7.1.0""#));

    both.owner_writes(call);
    both.server_writes(&answer("7", required));
    both.owner_writes(&answer(r#""7.1.0""#, r#""result":{"roots":[]}"#));
    let sent = both.owner_writes(&cancelled("7"));
    assert_eq!(sent, format!("{}\n", cancelled(r#""7.1""#)));
}

fn acknowledged(number: u32, uris: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{{"_meta":{{"io.modelcontextprotocol/subscriptionId":"listen-{number}"}},"notifications":{{"resourceSubscriptions":[{uris}]}}}}}}"#
    )
}

fn subscribe(id: u32, uri: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"resources/subscribe","params":{{"uri":"{uri}"}}}}"#
    )
}

/// A session that hears of changes of tools.
fn listening() -> Both {
    listening_at(Isolation::Session)
}

/// The same at a child whose sessions are isolated like this.
fn listening_at(isolation: Isolation) -> Both {
    let mut both = Both::isolated(Opening::Modern, (false, isolation));
    both.owner_writes(INITIALIZE);
    let discovered = DISCOVERED.replace(
        r#"{"tools":{}}"#,
        r#"{"tools":{"listChanged":true},"resources":{"subscribe":true}}"#,
    );
    both.server_writes(&answer("1", &discovered));
    let listen = both.owner_writes(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
    assert!(
        listen.contains(r#""id":"listen-1","method":"subscriptions/listen""#),
        "{listen}"
    );
    let filter = r#""notifications":{"toolsListChanged":true,"resourceSubscriptions":[]}"#;
    assert!(listen.contains(filter), "{listen}");
    both
}

#[test]
fn subscriptions_are_one_request_at_a_time() {
    let mut both = listening();
    // The next one waits for the acknowledgement of the first, and is for all that came meanwhile.
    assert_eq!(both.owner_writes(&subscribe(2, "a:b")), "");
    assert_eq!(both.owner_writes(&subscribe(3, r"a:\u0063")), "");
    let (listen, told) = both.server_writes(&acknowledged(1, ""));
    assert!(told.is_empty());
    assert!(
        listen.contains(r#""resourceSubscriptions":["a:b","a:c"]"#),
        "{listen}"
    );
    let (ended, told) = both.server_writes(&acknowledged(2, r#""a:b""#));
    assert!(ended.contains(r#"notifications/cancelled","params":{"requestId":"listen-1"}"#));
    assert_eq!(told[0], answer("2", r#""result":{}"#));
    assert!(told[1].starts_with(r#"{"jsonrpc":"2.0","id":3,"error":{"code":-32602"#));

    let updated = r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":"listen-2"},"uri":"a:b"}}"#;
    let (_, told) = both.server_writes(updated);
    assert_eq!(
        told,
        [
            r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"_meta":{},"uri":"a:b"}}"#
        ]
    );

    // What comes on the former subscription as well is heard once, and other resources not at all.
    for unheard in [
        updated.replace("listen-2", "listen-1"),
        updated.replace(r#""a:b""#, r#""a:c""#),
    ] {
        assert_eq!(both.server_writes(&unheard).1, [""; 0]);
    }
}

/// They stayed, and were requested again with each further one, as long as the child lived.
#[test]
fn a_cancelled_subscription_is_requested_no_more() {
    let cancelled = |id: u32| {
        format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id}}}}}"#
        )
    };
    let mut both = listening();
    both.owner_writes(&subscribe(2, "a:b"));
    assert!(both.translator.kept() > 0);
    // The server has not heard of it.
    assert_eq!(both.owner_writes(&cancelled(2)), "");
    assert_eq!(both.translator.kept(), 0);
    for (id, uri) in [(3, "a:b"), (4, "a:b"), (5, "a:c")] {
        both.owner_writes(&subscribe(id, uri));
    }
    let (listen, _) = both.server_writes(&acknowledged(1, ""));
    let requested = |listen: &str, uris: &str| {
        let uris = format!(r#""resourceSubscriptions":[{uris}]"#);
        assert!(listen.contains(&uris), "{listen}");
    };
    requested(&listen, r#""a:b","a:c""#);
    for id in [3, 5] {
        assert_eq!(both.owner_writes(&cancelled(id)), "");
    }
    let (listen, told) = both.server_writes(&acknowledged(2, r#""a:b","a:c""#));
    assert_eq!(told, [answer("4", r#""result":{}"#)]);
    requested(&listen, r#""a:b""#);
    // One that the session has stays, though a later request for it is cancelled.
    both.owner_writes(&subscribe(6, "a:b"));
    both.owner_writes(&cancelled(6));
    let (listen, told) = both.server_writes(&acknowledged(3, r#""a:b""#));
    assert_eq!(told, [""; 0]);
    requested(&listen, r#""a:b""#);
}

#[test]
fn a_subscription_that_the_server_ends_is_begun_again() {
    let mut both = listening();
    both.server_writes(&acknowledged(1, ""));
    both.owner_writes(&subscribe(2, "a:b"));
    both.server_writes(&acknowledged(2, r#""a:b""#));
    both.owner.clear();

    // One that the server ends is begun again, but not without an end.
    for number in 2..5 {
        let end = answer(
            &format!(r#""listen-{number}""#),
            r#""result":{"resultType":"complete"}"#,
        );
        let (again, _) = both.server_writes(&end);
        assert!(
            again.contains(&format!(r#""id":"listen-{}""#, number + 1)),
            "{again}"
        );
        both.server_writes(&acknowledged(number + 1, r#""a:b""#));
    }
    let end = answer(r#""listen-5""#, r#""result":{}"#);
    assert_eq!(both.server_writes(&end), (String::new(), vec![]));

    // Without a server that tells of resources, the client is told.
    let unsubscribe = subscribe(8, "a:b").replace("subscribe", "unsubscribe");
    assert!(both.owner_writes(&unsubscribe).contains("listen-6"));
    assert_eq!(
        both.owner.pop_front().unwrap(),
        answer("8", r#""result":{}"#)
    );
    both.owner_writes(&subscribe(9, "a:d"));
    let error = r#""error":{"code":-32601,"message":"no"}"#;
    let (again, _) = both.server_writes(&answer(r#""listen-6""#, error));
    assert!(
        again.contains(r#""resourceSubscriptions":["a:d"]"#),
        "{again}"
    );
    let (_, told) = both.server_writes(&answer(r#""listen-7""#, error));
    assert_eq!(told, [answer("9", error)]);
}

/// Its sessions heard of no change any more, as long as it lived.
#[test]
fn a_subscription_that_the_server_cancels_is_begun_again() {
    let cancelled = |number: u32| {
        format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":"listen-{number}"}}}}"#
        )
    };
    let mut both = listening();
    both.server_writes(&acknowledged(1, ""));
    let (again, told) = both.server_writes(&cancelled(1));
    assert!(again.contains(r#""id":"listen-2""#), "{again}");
    assert_eq!(told, [""; 0]);
    // One that was not acknowledged ends with what waits for it.
    both.server_writes(&acknowledged(2, ""));
    both.owner_writes(&subscribe(2, "a:b"));
    let (_, told) = both.server_writes(&cancelled(3));
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].starts_with(r#"{"jsonrpc":"2.0","id":2,"error":{"code":-32603"#));
    let listen = both.owner_writes(&subscribe(3, "a:c"));
    assert!(listen.contains(r#""id":"listen-4""#), "{listen}");
}

/// Servers end subscriptions when they read their configuration again, and shared ones live for weeks.
#[test]
fn a_server_that_ends_subscriptions_now_and_then_is_heard_on() {
    let ended = |number: u32| answer(&format!(r#""listen-{number}""#), r#""result":{}"#);
    let listens = |number: u32| format!(r#""id":"listen-{number}""#);
    let mut both = listening_at(Isolation::Tenant);
    both.server_writes(&acknowledged(1, ""));
    for number in 1..10 {
        both.now += Duration::from_secs(61);
        let (again, _) = both.server_writes(&ended(number));
        assert!(again.contains(&listens(number + 1)), "{again}");
        both.server_writes(&acknowledged(number + 1, ""));
    }
    for number in 10..12 {
        let (again, _) = both.server_writes(&ended(number));
        assert!(again.contains(&listens(number + 1)), "{again}");
        both.server_writes(&acknowledged(number + 1, ""));
    }
    // Too many at once: it is left alone for a while, and what was kept meanwhile may be stale.
    assert_eq!(both.server_writes(&ended(12)), (String::new(), vec![]));
    both.owner_writes(&list(50));
    both.server_writes(&answer("50", &kept_for(100_000, "public")));
    both.now += Duration::from_secs(59);
    assert_eq!(both.owner_writes(&list(51)), "", "it is kept");
    both.now += Duration::from_secs(2);
    let again = both.owner_writes(&list(52));
    assert!(again.contains(&listens(13)), "{again}");
    both.owner.clear();
    let (_, told) = both.server_writes(&acknowledged(13, ""));
    let changed = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;
    assert_eq!(told, [changed]);
    assert!(both.owner_writes(&list(53)).contains("tools/list"));
    assert_eq!(both.server_writes(&acknowledged(13, "")).1, [""; 0]);
}

#[test]
fn a_server_that_refuses_a_subscription_is_asked_again() {
    let mut both = listening();
    let refused = |number: u32| {
        let error = r#""error":{"code":-32603,"message":"not now"}"#;
        answer(&format!(r#""listen-{number}""#), error)
    };
    for number in 1..4 {
        let (again, told) = both.server_writes(&refused(number));
        assert!(again.contains(&format!(r#""id":"listen-{}""#, number + 1)));
        assert!(told.is_empty(), "{told:?}");
    }
    assert_eq!(both.server_writes(&refused(4)), (String::new(), vec![]));
}

/// It was never answered, and its client waited for `clocks.call`.
#[test]
fn a_subscription_behind_one_that_is_refused_is_refused_as_well() {
    let unsubscribe = subscribe(4, "a:c").replace("subscribe", "unsubscribe");
    let unwatched = |id: &str| {
        let error =
            r#""error":{"code":-32602,"message":"the server does not watch this resource"}"#;
        answer(id, error)
    };
    let not_now = r#""error":{"code":-32603,"message":"not now"}"#;
    let refused = answer(r#""listen-1""#, not_now);
    for (waits, is_left) in [("a:b", false), ("a:c", true)] {
        for (said, first) in [
            (acknowledged(1, ""), unwatched("2")),
            (refused.clone(), answer("2", not_now)),
        ] {
            let mut both = begun();
            let listen = both.owner_writes(&subscribe(2, "a:b"));
            assert!(listen.contains(r#""id":"listen-1""#), "{listen}");
            assert_eq!(both.owner_writes(&subscribe(3, waits)), "");
            if is_left {
                assert_eq!(both.owner_writes(&unsubscribe), "");
                let left = both.owner.pop_front().unwrap();
                assert_eq!(left, answer("4", r#""result":{}"#));
            }
            let (_, told) = both.server_writes(&said);
            assert_eq!(told, [first, unwatched("3")], "{said}");
            assert_eq!(both.translator.kept(), 0);
            // A later one is requested as any other.
            let listen = both.owner_writes(&subscribe(5, "a:b"));
            assert!(listen.contains(r#""id":"listen-2""#), "{listen}");
        }
    }
}

#[test]
fn an_answer_to_an_earlier_round_is_none() {
    let mut both = begun();
    both.owner_writes(r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{}}"#);
    let required =
        r#""result":{"resultType":"input_required","inputRequests":{"a":{"method":"roots/list"}}}"#;
    both.server_writes(&answer("7", required));
    let roots = r#""result":{"roots":[]}"#;
    assert!(
        both.owner_writes(&answer(r#""7.1.0""#, roots))
            .contains(r#""id":"7.1""#)
    );
    both.server_writes(&answer(r#""7.1""#, required));
    assert_eq!(both.owner_writes(&answer(r#""7.1.0""#, roots)), "");
    assert!(
        both.owner_writes(&answer(r#""7.2.0""#, roots))
            .contains(r#""id":"7.2""#)
    );
}

/// The state before it was counted as long as the child ran, and its client was still asked when its call had ended.
#[test]
fn an_answer_to_a_request_that_is_not_made_yet_is_none() {
    let required = |state: &str| {
        format!(
            r#""result":{{"resultType":"input_required","requestState":"{state}","inputRequests":{{"a":{{"method":"roots/list"}}}}}}"#
        )
    };
    let mut both = begun();
    both.owner_writes(r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{}}"#);
    both.server_writes(&answer("7", &required("first")));
    let kept = both.translator.kept();
    for early in [&*required("another"), r#""result":{}"#] {
        let (server, told) = both.server_writes(&answer(r#""7.1""#, early));
        assert!(server.is_empty() && told.is_empty(), "{told:?}");
        assert_eq!(both.translator.kept(), kept);
    }
    let again = both.owner_writes(&answer(r#""7.1.0""#, r#""result":{"roots":[]}"#));
    assert!(again.contains(r#""requestState":"first""#), "{again}");
    let (_, told) = both.server_writes(&answer(r#""7.1""#, r#""result":{}"#));
    assert_eq!(told, [answer("7", r#""result":{}"#)]);
    assert_eq!(both.translator.kept(), 0);
}

#[test]
fn clients_of_this_era_get_the_keys_of_the_server() {
    let mut both = Both::of(Opening::Modern, true);
    both.owner_writes(INITIALIZE);
    both.server_writes(&answer("1", DISCOVERED));
    both.owner_writes(r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{}}"#);
    let required =
        r#""result":{"resultType":"input_required","inputRequests":{"a":{"method":"roots/list"}}}"#;
    let (_, asks) = both.server_writes(&answer("7", required));
    assert_eq!(
        asks,
        [
            r#"{"jsonrpc":"2.0","id":"7.1.0","method":"roots/list","params":{"_meta":{"lockgate/inputKey":"a"}}}"#
        ]
    );
}

/// 2025-11-25 elicitation: a request without the id is one that its clients refuse.
#[test]
fn a_url_to_visit_has_an_id_for_clients_of_other_eras() {
    for (params, is_for_modern, asked) in [
        (
            r#"{"mode":"url","url":"u:"}"#,
            false,
            r#"{"elicitationId":"7.1.0","mode":"url","url":"u:"}"#,
        ),
        (
            r#"{"mode":"url","url":"u:"}"#,
            true,
            r#"{"_meta":{"lockgate/inputKey":"a"},"mode":"url","url":"u:"}"#,
        ),
        (
            r#"{"mode":"url","elicitationId":"own"}"#,
            false,
            r#"{"mode":"url","elicitationId":"own"}"#,
        ),
        (r#"{"mode":"form"}"#, false, r#"{"mode":"form"}"#),
    ] {
        let mut both = Both::of(Opening::Modern, is_for_modern);
        both.owner_writes(INITIALIZE);
        both.server_writes(&answer("1", DISCOVERED));
        both.owner_writes(r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{}}"#);
        let request = format!(r#"{{"method":"elicitation/create","params":{params}}}"#);
        let required = format!(
            r#""result":{{"resultType":"input_required","inputRequests":{{"a":{request}}}}}"#
        );
        let (_, asks) = both.server_writes(&answer("7", &required));
        let expected = format!(
            r#"{{"jsonrpc":"2.0","id":"7.1.0","method":"elicitation/create","params":{asked}}}"#
        );
        assert_eq!(asks, [expected]);
    }
}

#[test]
fn what_a_server_makes_the_gateway_keep_is_bounded() {
    let mut both = begun();
    let state = "s".repeat(1 << 20);
    let required = format!(
        r#""result":{{"resultType":"input_required","requestState":"{state}","inputRequests":{{"a":{{"method":"roots/list"}}}}}}"#
    );
    let mut asked = 0;
    for call in 2..40 {
        both.owner_writes(&format!(
            r#"{{"jsonrpc":"2.0","id":{call},"method":"tools/call","params":{{}}}}"#
        ));
        let (_, told) = both.server_writes(&answer(&call.to_string(), &required));
        asked += usize::from(told[0].contains("roots/list"));
    }
    assert_eq!(asked, 15, "of 1 MiB each, and 16 MiB in all");
    assert!(both.translator.kept() < 16 << 20);
    // What has ended takes nothing.
    for call in 2..40 {
        let roots = r#""result":{"roots":[]}"#;
        both.owner_writes(&answer(&format!(r#""{call}.1.0""#), roots));
        both.server_writes(&answer(&format!(r#""{call}.1""#), r#""result":{}"#));
    }
    assert_eq!(both.translator.kept(), 0);
}

/// A translator of a child whose sessions are isolated like this, which has begun.
fn shared(isolation: Isolation) -> Both {
    let mut both = Both::isolated(Opening::Modern, (false, isolation));
    both.owner_writes(INITIALIZE);
    both.server_writes(&answer("1", DISCOVERED));
    both
}

fn list(id: u32) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/list","params":{{}}}}"#)
}

fn kept_for(ttl: u64, scope: &str) -> String {
    format!(
        r#""result":{{"resultType":"complete","tools":[],"ttlMs":{ttl},"cacheScope":"{scope}"}}"#
    )
}

fn told(id: u32, ttl: u64, scope: &str) -> String {
    let hint = format!(r#""_meta":{{"lockgate/cache":{{"ttlMs":{ttl},"cacheScope":"{scope}"}}}}"#);
    answer(
        &id.to_string(),
        &format!(r#""result":{{{hint},"tools":[]}}"#),
    )
}

#[test]
fn a_result_is_given_again_as_long_as_the_server_says() {
    let mut both = shared(Isolation::Principal);
    assert!(both.owner_writes(&list(2)).contains("tools/list"));
    let (_, first) = both.server_writes(&answer("2", &kept_for(1000, "private")));
    assert_eq!(first, [told(2, 1000, "private")]);
    both.now += Duration::from_millis(600);
    assert_eq!(both.owner_writes(&list(3)), "");
    assert_eq!(both.owner.pop_front().unwrap(), told(3, 400, "private"));
    both.now += Duration::from_millis(400);
    assert!(both.owner_writes(&list(4)).contains("tools/list"));
    // Not what is stale at once, nor what is refused or never comes.
    both.server_writes(&answer("4", &kept_for(0, "private")));
    assert_ne!(both.owner_writes(&list(5)), "");
    both.server_writes(&answer("5", r#""error":{"code":-1,"message":"no"}"#));
    assert_ne!(both.owner_writes(&list(6)), "");
    both.owner_writes(
        r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":6}}"#,
    );
    assert_eq!(both.translator.kept(), 0);
}

#[test]
fn a_result_is_given_to_those_alone_that_it_is_for() {
    for (isolation, scope, is_kept) in [
        (Isolation::Session, "public", false),
        (Isolation::Principal, "private", true),
        (Isolation::Principal, "public", true),
        (Isolation::Tenant, "private", false),
        (Isolation::Tenant, "public", true),
    ] {
        let mut both = shared(isolation);
        both.owner_writes(&list(2));
        both.server_writes(&answer("2", &kept_for(1000, scope)));
        assert_eq!(
            both.owner_writes(&list(3)).is_empty(),
            is_kept,
            "{isolation:?} {scope}"
        );
    }
}

#[test]
fn a_change_is_read_anew() {
    let changed = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;
    let mut both = shared(Isolation::Tenant);
    both.owner_writes(&list(2));
    // The server has read its list before the change, and answers behind it.
    both.server_writes(changed);
    both.server_writes(&answer("2", &kept_for(1000, "public")));
    assert_ne!(both.owner_writes(&list(3)), "");
    both.server_writes(&answer("3", &kept_for(1000, "public")));
    assert_eq!(both.owner_writes(&list(4)), "");
    both.server_writes(changed);
    assert_ne!(both.owner_writes(&list(5)), "");
    // Nor are pages kept beside one whose cursor is refused.
    both.server_writes(&answer("5", &kept_for(1000, "public")));
    let page = list(6).replace("{}", r#"{"cursor":"x"}"#);
    both.owner_writes(&page);
    both.server_writes(&answer("6", r#""error":{"code":-32602,"message":"no"}"#));
    assert_ne!(both.owner_writes(&list(7)), "");
}

#[tokio::test]
async fn large_lines_wait_for_their_turns() {
    let call = |id: u32, bytes: usize| {
        let text = "x".repeat(bytes);
        format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"echo","arguments":{{"text":"{text}"}}}}}}"#
        )
    };
    let mut both = begun();
    let held = LargeWork::all_turns().await;
    assert_eq!(both.owner_writes(&call(2, 1 << 20)), "");
    assert_eq!(both.owner_writes(&call(3, 1)), "", "one overtakes another");
    let large = answer(
        "9",
        &format!(r#""result":{{"text":"{}"}}"#, "x".repeat(1 << 20)),
    );
    let (server, told) = both.server_writes(&large);
    assert!(server.is_empty() && told.is_empty(), "without a turn");
    assert!(both.translator.has_large());
    assert!(both.translator.kept() > 1 << 20);
    drop(held);
    both.large();
    assert!(!both.translator.has_large());
    let lines = both.owner_writes(&call(4, 1));
    let ids: Vec<_> = lines
        .lines()
        .map(|line| line.contains(r#""id":3"#))
        .collect();
    assert_eq!(ids, [false, true, false]);
}

/// Each was some ten milliseconds of a worker, for a line of 90 bytes.
#[tokio::test]
async fn a_large_call_is_made_again_in_a_turn() {
    let call = |id: u32, text: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"arguments":{{"x":"{text}"}}}}}}"#
        )
    };
    let mut both = begun();
    both.owner_writes(&call(2, &"x".repeat(1 << 20)));
    let held = LargeWork::all_turns().await;
    let state = r#""result":{"resultType":"input_required","requestState":"t"}"#;
    let (again, told) = both.server_writes(&answer("2", state));
    assert!(again.is_empty() && told.is_empty(), "without a turn");
    assert!(both.translator.has_large());
    assert_eq!(both.owner_writes(&call(3, "x")), "", "one overtakes it");
    drop(held);
    let lines = both.owner_writes(&call(4, "x"));
    assert!(!both.translator.has_large());
    assert!(lines.contains(r#""id":"2.1""#), "{}", lines.len());
    let lines = both.owner_writes(&call(5, "x"));
    assert_eq!(lines.lines().count(), 3, "what has waited");

    // The answer that completes a round is as short.
    let required =
        r#""result":{"resultType":"input_required","inputRequests":{"a":{"method":"roots/list"}}}"#;
    let (_, asks) = both.server_writes(&answer(r#""2.1""#, required));
    assert!(asks[0].contains(r#""2.2.0""#), "{asks:?}");
    let held = LargeWork::all_turns().await;
    let roots = answer(r#""2.2.0""#, r#""result":{"roots":[]}"#);
    assert_eq!(both.owner_writes(&roots), "");
    assert!(both.translator.has_large());
    drop(held);
    both.large();
    let again = String::from_utf8(both.server.split().to_vec()).unwrap();
    assert!(again.contains(r#""id":"2.2""#));
    assert!(again.contains(r#""inputResponses":{"a":{"roots":[]}}"#));
}

/// The last line of a server of sessions may be a large one, which its owner still gets.
#[tokio::test]
async fn a_large_line_is_not_lost_with_its_translator() {
    let mut both = Both::new(Opening::Legacy);
    both.owner_writes(INITIALIZE);
    both.server_writes(INITIALIZED);
    let held = LargeWork::all_turns().await;
    let large = answer(
        "2",
        &format!(r#""result":{{"text":"{}"}}"#, "x".repeat(1 << 20)),
    );
    assert_eq!(both.server_writes(&large).1.len(), 0);
    assert!(!both.translator.is_over(), "with a line that waits");
    drop(held);
    both.large();
    assert_eq!(both.owner, [large.as_bytes()]);
    assert!(both.translator.is_over());
}

#[test]
fn the_result_of_a_retry_is_kept_for_nobody() {
    let initialize = INITIALIZE.replace("elicitation", "roots");
    let mut both = Both::isolated(Opening::Modern, (false, Isolation::Principal));
    both.owner_writes(&initialize);
    both.server_writes(&answer("1", DISCOVERED));
    let read = |id: u32| {
        format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"resources/read","params":{{"uri":"a:b"}}}}"#
        )
    };
    both.owner_writes(&read(2));
    let required = r#""result":{"resultType":"input_required","inputRequests":{"a":{"method":"roots/list"}},"ttlMs":1000}"#;
    both.server_writes(&answer("2", required));
    both.owner_writes(&answer(r#""2.1.0""#, r#""result":{"roots":[]}"#));
    let (_, told) = both.server_writes(&answer(r#""2.1""#, &kept_for(1000, "public")));
    assert_eq!(told, [answer("2", r#""result":{"tools":[]}"#)]);
    assert_ne!(both.owner_writes(&read(3)), "");
}

#[test]
fn results_that_are_given_again_are_bounded() {
    let mut both = shared(Isolation::Tenant);
    let text = "x".repeat(100 << 10);
    let long = kept_for(1000, "public").replace("[]", &format!(r#""{text}""#));
    let page = |id: u32| list(id).replace("{}", &format!(r#"{{"cursor":"{id}"}}"#));
    for id in 2..40 {
        both.owner_writes(&page(id));
        both.server_writes(&answer(&id.to_string(), &long));
    }
    let kept = both.translator.kept();
    assert!((900 << 10..1 << 20).contains(&kept), "{kept}");
    both.now += Duration::from_secs(2);
    both.owner_writes(&list(50));
    both.server_writes(&answer("50", &kept_for(1000, "public")));
    assert!(both.translator.kept() < 1000, "what is stale gives way");
}
