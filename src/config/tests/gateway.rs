//! Tests of `config::gateway`.

use std::fs;

use super::super::gateway::*;

fn env(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let home = [("HOME", "/home/ada")];
    let all = home.iter().chain(pairs);
    all.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

fn sources(variables: &[(&str, &str)], set: &[&str]) -> Sources {
    Sources {
        env: env(variables),
        set: set.iter().map(|set| (*set).to_owned()).collect(),
        ..Sources::default()
    }
}

fn with_file(text: &str) -> (tempfile::TempDir, Sources) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("lockgate.toml");
    fs::write(&file, text).unwrap();
    (
        dir,
        Sources {
            file: Some(file),
            ..sources(&[], &[])
        },
    )
}

fn mistakes(sources: &Sources) -> Vec<String> {
    let Err(error) = Config::load(sources) else {
        panic!("no mistake")
    };
    let name = sources
        .file
        .as_ref()
        .map_or(String::new(), |file| file.display().to_string());
    let text = |mistake: &Mistake| mistake.to_string();
    let short = |text: String| {
        if name.is_empty() {
            text
        } else {
            text.replace(&name, "F")
        }
    };
    error.mistakes.iter().map(text).map(short).collect()
}

#[test]
fn defaults_are_those_of_the_design() {
    let config = Config::load(&sources(&[], &[])).unwrap();
    assert_eq!(config.public_url, "http://127.0.0.1:8080");
    assert_eq!(
        config.data_dir,
        Path::new("/home/ada/.local/state/lockgate")
    );
    assert_eq!(config.http.listen, "127.0.0.1:8080".parse().unwrap());
    assert_eq!(config.http.max_body, 4 << 20);
    assert_eq!(config.http.max_connections, 20_000);
    assert_eq!(config.http.tls, None);
    assert_eq!(config.ops.listen, Some("127.0.0.1:9090".parse().unwrap()));
    assert_eq!(config.default, None);
    assert_eq!(config.session.idle, Duration::from_secs(1800));
    assert_eq!(config.session.max, Duration::from_secs(86_400));
    assert_eq!(config.stream.keep_alive, Duration::from_secs(15));
    assert_eq!(config.stream.per_session, 32);
    assert_eq!((config.log.events, config.log.bytes), (1000, 4 << 20));
    assert_eq!(config.drain.timeout, Duration::from_secs(30));
    assert!(!config.auth.insecure && !config.sandbox.shared_uid);
    assert_eq!(config.telemetry.format, LogFormat::Auto);
}

#[test]
fn later_sources_win() {
    let (_dir, mut all) =
        with_file("[session]\nidle = \"1s\"\nmax = \"1s\"\n[stream]\nretry = \"1ms\"\n");
    all.env = env(&[
        ("LOCKGATE_SESSION__IDLE", "2s"),
        ("LOCKGATE_SESSION__MAX", "2s"),
    ]);
    all.set = vec!["session.max=3s".to_owned()];
    let config = Config::load(&all).unwrap();
    assert_eq!(config.stream.retry, Duration::from_millis(1));
    assert_eq!(config.session.idle, Duration::from_secs(2));
    assert_eq!(config.session.max, Duration::from_secs(3));
    all.set.push("http.listen=127.0.0.1:1".to_owned());
    all.listen = Some("127.0.0.1:0".to_owned());
    assert_eq!(Config::load(&all).unwrap().http.listen.port(), 0);
}

#[test]
fn file_takes_every_way_to_write_a_table() {
    for text in [
        "http.listen = \"127.0.0.1:1\"\nhttp.tls = {cert = \"c\", key = \"k\"}\n",
        "[http]\nlisten = \"127.0.0.1:1\"\n[http.tls]\ncert = \"c\"\nkey = \"k\"\n",
        "http = {listen = \"127.0.0.1:1\", tls.cert = \"c\", tls.key = \"k\"}\n",
    ] {
        let (_dir, sources) = with_file(text);
        let config = Config::load(&sources).unwrap();
        assert_eq!(config.public_url, "https://127.0.0.1:1", "{text}");
        assert_eq!(config.http.tls.unwrap().key, Path::new("k"));
    }
}

#[test]
fn words_fit_the_type_of_their_key() {
    let config = Config::load(&sources(
        &[
            ("LOCKGATE_HTTP__ALLOWED_HOSTS", "a.example, b.example:81"),
            (
                "LOCKGATE_HTTP__TRUSTED_PROXIES",
                "[\"10.0.0.0/8\", \"::1\"]",
            ),
            ("LOCKGATE_LOG__EVENTS", "5"),
            ("LOCKGATE_OPS__LISTEN", ""),
            ("RUST_LOG", "debug"),
            ("LOCKGATE_MASTER_KEY", "x"),
            ("LOCKGATE_APPLY", "x"),
            ("LOCKGATE_KEY_FILE", "x"),
        ],
        &[
            "http.max_body=512",
            "auth.insecure=true",
            "default={tenant=\"a\", server=\"b\"}",
        ],
    ))
    .unwrap();
    assert_eq!(config.http.allowed_hosts, ["a.example", "b.example:81"]);
    assert_eq!(config.http.trusted_proxies.len(), 2);
    assert_eq!((config.log.events, config.http.max_body), (5, 512));
    assert!(config.ops.listen.is_none() && config.auth.insecure);
    assert_eq!(config.telemetry.log, "debug");
    assert_eq!(config.default, Some(("a".to_owned(), "b".to_owned())));
}

#[test]
fn variables_may_name_files() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("idle");
    fs::write(&file, "7s\n").unwrap();
    let name = "LOCKGATE_SESSION__IDLE_FILE";
    let config = Config::load(&sources(&[(name, file.to_str().unwrap())], &[])).unwrap();
    assert_eq!(config.session.idle, Duration::from_secs(7));
    let found = mistakes(&sources(&[(name, "/nonexistent/x")], &[]));
    assert!(
        found[0].starts_with("LOCKGATE_SESSION__IDLE_FILE: session.idle: "),
        "{found:?}"
    );
}

#[test]
fn reports_all_mistakes_with_place_and_remedy() {
    let (_dir, mut all) = with_file(
        "public_url = 5\nhttp.lisen = \"x\"\n[stream]\nretry = \"1x\"\nper_session = 0\n[vault]\nurl = 1\n",
    );
    all.env = env(&[
        ("LOCKGATE_HTTP__LISTNE", "x"),
        ("LOCKGATE_LOG__AGE", "soon"),
    ]);
    all.set = ["sandbox.uid=1-2", "nonsense", "http=5", "server.args=1"]
        .map(String::from)
        .to_vec();
    let mut found = mistakes(&all);
    found.sort();
    insta::assert_snapshot!(found.join("\n"), @r###"
    --set: http: a number where a table is expected; its keys are access_log, allowed_hosts, allowed_origins, listen, max_body, max_connections, per_address.connections, per_address.requests_per_second, tls.cert, tls.key, trusted_proxies
    --set: nonsense: is no KEY=VALUE; write --set http.listen=127.0.0.1:8080
    --set: sandbox.uid: unknown key; did you mean sandbox.uids?
    --set: server.args: a server's key, which only run takes; write it into the manifest (--apply)
    F:1: public_url: a number where a text is expected; put it in quotes
    F:2: http.lisen: unknown key; did you mean http.listen?
    F:4: stream.retry: "1x" is not a duration; write it like "250ms", "30s" or "1m30s"
    F:5: stream.per_session: 0 is out of range; write a number from 1 to 4294967295
    F:6: vault: unknown key; see config.default.toml for all keys
    LOCKGATE_HTTP__LISTNE: http.listne: unknown variable; did you mean LOCKGATE_HTTP__LISTEN?
    LOCKGATE_LOG__AGE: log.age: "soon" is not a duration; write it like "250ms", "30s" or "1m30s"
    "###);
}

#[test]
fn bad_values_are_refused() {
    for set in [
        "public_url=ftp://x",
        "public_url=http://x/",
        "public_url=http://x?y",
        "public_url=x",
        "http.listen=8080",
        "http.allowed_origins=https://a.example/",
        "http.allowed_origins=example",
        "http.allowed_hosts=https://x",
        "http.trusted_proxies=10/8",
        "http.max_body=",
        "http.max_connections=0",
        "http.tls.cert=x",
        "default.tenant=a",
        "default={tenant=\"A\",server=\"b\"}",
        "telemetry.format=xml",
        "telemetry.log=a=b=c",
        "auth.insecure=1",
        "http.listen=0.0.0.0:1",
        "log.events=-1",
        "ops.listen=127.0.0.1:8080",
        "data_dir=",
        "server.reply.mode=json",
        "http.tls=5",
    ] {
        assert_eq!(mistakes(&sources(&[], &[set])).len(), 1, "{set}");
    }
}

#[test]
fn public_url_follows_the_listener() {
    let mut config = Config::load(&sources(&[], &["http.listen=[::1]:0"])).unwrap();
    config.bind("[::1]:77".parse().unwrap());
    assert_eq!(config.public_url, "http://[::1]:77");
    let set = ["http.listen=0.0.0.0:0", "public_url=https://a.example/x"];
    let mut config = Config::load(&sources(&[], &set)).unwrap();
    config.bind("0.0.0.0:77".parse().unwrap());
    assert_eq!(config.public_url, "https://a.example/x");
}

#[test]
fn data_dir_has_a_home() {
    let at = |variables: &[(&str, &str)], set: &[&str]| {
        Config::load(&sources(variables, set)).unwrap().data_dir
    };
    assert_eq!(
        at(&[("XDG_STATE_HOME", "/s")], &[]),
        Path::new("/s/lockgate")
    );
    assert_eq!(
        at(&[("XDG_STATE_HOME", "s")], &[]),
        Path::new("/home/ada/.local/state/lockgate")
    );
    assert_eq!(
        at(&[("XDG_STATE_HOME", "/s")], &["data_dir=~/d"]),
        Path::new("/home/ada/d")
    );
    let homeless = Sources::default();
    assert_eq!(mistakes(&homeless).len(), 1);
    assert!(
        Config::load(&Sources {
            run: true,
            ..homeless
        })
        .is_ok()
    );
}

#[test]
fn work_dir_is_absolute_or_none() {
    let at = |set: &[&str]| Config::load(&sources(&[], set)).unwrap().work_dir;
    assert_eq!(at(&[]), None);
    assert_eq!(at(&["work_dir="]), None);
    assert_eq!(at(&["work_dir=~/w"]), Some("/home/ada/w".into()));
    let here = std::env::current_dir().unwrap();
    assert_eq!(at(&["work_dir=w"]), Some(here.join("w")));
    let homeless = Sources {
        env: BTreeMap::from([("LOCKGATE_DATA_DIR".to_owned(), "/d".to_owned())]),
        set: vec!["work_dir=~/w".to_owned()],
        ..Sources::default()
    };
    let wanted = "--set: work_dir: begins with ~/, and HOME is not set; write an absolute path";
    assert_eq!(mistakes(&homeless), [wanted]);
}

#[test]
fn run_has_its_own_defaults() {
    let run = |set: &[&str]| Sources {
        run: true,
        ..sources(&[("LOCKGATE_CONFIG", "/no")], set)
    };
    let config = Config::load(&run(&[
        "server.reply.close_after=300ms",
        "server.tools.\"a.b\".call=1s",
    ]))
    .unwrap();
    assert_eq!(config.drain.timeout, Duration::from_secs(2));
    assert_eq!(config.ops.listen, None);
    assert_eq!(
        config.default,
        Some(("local".to_owned(), "main".to_owned()))
    );
    assert_eq!(config.telemetry.format, LogFormat::Short);
    assert_eq!(config.server[1].path, ["tools", "a.b", "call"]);
    assert_eq!(mistakes(&run(&["http.listen=0.0.0.0:1"])).len(), 1);
    assert_eq!(
        Config::load(&run(&["drain.timeout=9s"]))
            .unwrap()
            .drain
            .timeout
            .as_secs(),
        9
    );
}

#[test]
fn unreadable_and_broken_files_are_mistakes() {
    let missing = Sources {
        file: Some("/nonexistent.toml".into()),
        ..sources(&[], &[])
    };
    assert!(mistakes(&missing)[0].contains("cannot be read"));
    let (_dir, broken) = with_file("a = [\n");
    assert!(mistakes(&broken)[0].starts_with("F:"));
    let by_variable = sources(&[("LOCKGATE_CONFIG", "/nonexistent.toml")], &[]);
    assert_eq!(mistakes(&by_variable).len(), 1);
}

#[test]
fn workers_leave_processors_to_children() {
    let at = [1, 2, 3, 4, 6, 8, 64].map(usual_workers);
    assert_eq!(at, [1, 1, 2, 3, 4, 6, 48]);
    let workers = |set: &[&str]| Config::load(&sources(&[], set)).unwrap().limits.workers;
    let processors = std::thread::available_parallelism().unwrap().get();
    assert_eq!(workers(&[]), usual_workers(processors));
    assert_eq!(workers(&["limits.workers=7"]), 7);
    let said = mistakes(&sources(&[], &["limits.workers=1025"]));
    assert!(said[0].contains("write 0 to 1024"), "{said:?}");
}

#[test]
fn run_refuses_what_it_has_no_use_for() {
    let run = |set: &[&str]| Sources {
        run: true,
        ..sources(&[], set)
    };
    for set in [
        "admin.listen=127.0.0.1:9091",
        "default.server=x",
        "default.tenant=x",
        "sql.url=postgres://x/y",
    ] {
        let (key, _) = set.split_once('=').unwrap();
        let what = "is written, and has no effect in run; leave it out, or use serve";
        assert_eq!(mistakes(&run(&[set])), [format!("--set: {key}: {what}")]);
    }
    let empty = ["admin.listen=", "default.tenant=", "sql.url="];
    assert!(Config::load(&run(&empty)).is_ok());
}
