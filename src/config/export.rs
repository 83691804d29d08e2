//! Export of traces and metrics by OTLP, set by the environment variables of OpenTelemetry.
//!
//! Only what decides whether and by which protocol is read here; the SDK reads endpoints, headers,
//! intervals and limits itself. What the SDK would ignore silently is a mistake here.

use std::{collections::BTreeMap, time::Duration};

use url::Url;

use super::reader::{Mistake, Wrong};

/// The export of telemetry; none by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Export {
    /// The export of traces.
    pub(crate) traces: Option<Signal>,
    /// The export of metrics, beside `/metrics`.
    pub(crate) metrics: Option<Signal>,
    /// The sampler.
    pub(crate) sampling: Sampling,
}

/// The export of one signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Signal {
    /// The transport of OTLP.
    pub(crate) protocol: Protocol,
    /// The time limit of an export.
    pub(crate) timeout: Duration,
}

/// Which traces are recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Sampling {
    /// So many a second.
    #[default]
    Bounded,
    /// Those that the sampler in `OTEL_TRACES_SAMPLER` chooses.
    OfTheSdk,
}

/// A transport of OTLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// Protobuf over HTTP.
    Http,
    /// gRPC.
    Grpc,
}

impl Export {
    /// Reads the variables; adds what is wrong with them to `mistakes`.
    pub(super) fn read(env: &BTreeMap<String, String>, mistakes: &mut Vec<Mistake>) -> Self {
        let mut variables = Variables { env, mistakes };
        if variables.is_disabled() {
            return Self::default();
        }
        let export = Self {
            traces: variables.signal("TRACES", &["otlp", "none"]),
            metrics: variables.signal("METRICS", &["otlp", "prometheus", "none"]),
            sampling: Sampling::Bounded,
        };
        if export.traces.is_none() || !variables.has_sampler() {
            return export;
        }
        Self {
            sampling: Sampling::OfTheSdk,
            ..export
        }
    }
}

/// The environment, and the mistakes in it.
struct Variables<'v> {
    env: &'v BTreeMap<String, String>,
    mistakes: &'v mut Vec<Mistake>,
}

impl<'v> Variables<'v> {
    /// The value of a variable; an empty one counts as unset, as the specification says.
    fn get(&self, name: &str) -> Option<&'v str> {
        let value = self.env.get(name).map(|value| value.trim());
        value.filter(|value| !value.is_empty())
    }

    /// Adds a mistake.
    fn refuse(&mut self, name: &str, what: impl Into<String>, remedy: impl Into<String>) {
        self.mistakes
            .push(Wrong::new(what, remedy).at("environment", name));
    }

    /// The value of `OTEL_EXPORTER_OTLP_{signal}_{name}`, else that of all signals, with its name.
    fn of(&self, signal: &str, name: &str) -> Option<(String, &'v str)> {
        let names = [
            format!("OTEL_EXPORTER_OTLP_{signal}_{name}"),
            format!("OTEL_EXPORTER_OTLP_{name}"),
        ];
        names
            .into_iter()
            .find_map(|name| self.get(&name).map(|value| (name, value)))
    }

    /// Whether `OTEL_SDK_DISABLED` turns all of it off.
    fn is_disabled(&self) -> bool {
        self.get("OTEL_SDK_DISABLED")
            .is_some_and(|value| value.eq_ignore_ascii_case("true"))
    }

    /// The export of a signal: with an endpoint, or with `OTEL_{signal}_EXPORTER=otlp`.
    fn signal(&mut self, signal: &str, exporters: &[&str]) -> Option<Signal> {
        let variable = format!("OTEL_{signal}_EXPORTER");
        let chosen = self.get(&variable);
        let named = chosen.unwrap_or_default().split(',').map(str::trim);
        let named: Vec<&str> = named.filter(|name| !name.is_empty()).collect();
        if let Some(unknown) = named.iter().find(|name| !exporters.contains(name)) {
            let remedy = format!("write one of {}", exporters.join(", "));
            self.refuse(
                &variable,
                format!("{unknown:?} is no exporter of it"),
                remedy,
            );
            return None;
        }
        let endpoint = self.of(signal, "ENDPOINT");
        let is_wanted = match chosen {
            Some(_) => named.contains(&"otlp"),
            None => endpoint.is_some(),
        };
        if !is_wanted {
            return None;
        }
        if let Some((name, url)) = endpoint {
            self.check_endpoint(&name, url);
        }
        self.check_compression(signal);
        Some(Signal {
            protocol: self.protocol(signal),
            timeout: self.timeout(signal),
        })
    }

    fn check_endpoint(&mut self, name: &str, endpoint: &str) {
        let parsed = Url::parse(endpoint);
        let is_http = |url: &Url| matches!(url.scheme(), "http" | "https") && url.has_host();
        // The value may carry a password, so it is not shown.
        if !parsed.is_ok_and(|url| is_http(&url)) {
            let remedy = "write a URL such as http://collector:4318";
            self.refuse(name, "is no http or https URL", remedy);
        }
    }

    fn check_compression(&mut self, signal: &str) {
        if let Some((name, value)) = self.of(signal, "COMPRESSION")
            && !matches!(value, "gzip" | "none")
        {
            let what = format!("{value:?} is no compression that is built in");
            self.refuse(&name, what, "write gzip, or unset it");
        }
    }

    fn protocol(&mut self, signal: &str) -> Protocol {
        match self.of(signal, "PROTOCOL") {
            None | Some((_, "http/protobuf")) => Protocol::Http,
            Some((_, "grpc")) => Protocol::Grpc,
            Some((name, other)) => {
                let what = format!("{other:?} is no protocol that is built in");
                self.refuse(&name, what, "write http/protobuf or grpc");
                Protocol::Http
            }
        }
    }

    fn timeout(&mut self, signal: &str) -> Duration {
        let Some((name, value)) = self.of(signal, "TIMEOUT") else {
            return TIMEOUT;
        };
        if let Ok(ms @ 1..=MAX_TIMEOUT_MS) = value.parse() {
            return Duration::from_millis(ms);
        }
        let what = format!("{value:?} is no number of milliseconds up to ten minutes");
        self.refuse(&name, what, "write 10000, or unset it");
        TIMEOUT
    }

    /// Whether the SDK has to use a sampler; checks its name.
    fn has_sampler(&mut self) -> bool {
        let (name, argument) = ("OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG");
        let Some(sampler) = self.get(name) else {
            return false;
        };
        if !SAMPLERS.contains(&sampler) {
            let remedy = format!("write one of {}", SAMPLERS.join(", "));
            self.refuse(name, format!("{sampler:?} is no sampler"), remedy);
            return false;
        }
        let ratio = self.get(argument);
        let is_ratio = |text: &str| text.parse().is_ok_and(|of| (0.0..=1.0).contains(&of));
        if sampler.ends_with("traceidratio") && !ratio.is_some_and(is_ratio) {
            let what = format!("is no share from 0 to 1, which {sampler} needs");
            self.refuse(argument, what, "write a number such as 0.1");
        }
        true
    }
}

/// The time limit of an export without a setting.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The longest time limit of an export.
const MAX_TIMEOUT_MS: u64 = 600_000;
/// The samplers of the SDK.
const SAMPLERS: [&str; 6] = [
    "always_on",
    "always_off",
    "traceidratio",
    "parentbased_always_on",
    "parentbased_always_off",
    "parentbased_traceidratio",
];

#[cfg(test)]
mod tests {
    use super::super::export::*;

    fn read(variables: &[(&str, &str)]) -> (Export, Vec<String>) {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let mut mistakes = Vec::new();
        let export = Export::read(&variables.iter().map(own).collect(), &mut mistakes);
        (export, mistakes.iter().map(ToString::to_string).collect())
    }

    const AT: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318");

    #[test]
    fn nothing_is_exported_without_an_endpoint() {
        for variables in [
            &[][..],
            &[("OTEL_EXPORTER_OTLP_ENDPOINT", " ")],
            &[("OTEL_SERVICE_NAME", "x"), ("OTEL_TRACES_EXPORTER", "none")],
            &[AT, ("OTEL_SDK_DISABLED", "True")],
            &[
                AT,
                ("OTEL_TRACES_EXPORTER", "none"),
                ("OTEL_METRICS_EXPORTER", "prometheus"),
            ],
        ] {
            assert_eq!(
                read(variables),
                (Export::default(), vec![]),
                "{variables:?}"
            );
        }
    }

    #[test]
    fn each_signal_has_its_own_variables() {
        let (export, mistakes) = read(&[
            (
                "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
                "https://collector/v1/traces",
            ),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "2500"),
            ("OTEL_METRICS_EXPORTER", "otlp, prometheus"),
        ]);
        assert!(mistakes.is_empty(), "{mistakes:?}");
        let timeout = Duration::from_millis(2500);
        let signal = |protocol| Some(Signal { protocol, timeout });
        assert_eq!(export.traces, signal(Protocol::Http));
        assert_eq!(export.metrics, signal(Protocol::Grpc));
    }

    #[test]
    fn wrong_variables_are_named() {
        let table = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "ftp://collector"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
            ("OTEL_EXPORTER_OTLP_METRICS_COMPRESSION", "zstd"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "0"),
            ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "10s"),
            ("OTEL_TRACES_EXPORTER", "zipkin"),
            ("OTEL_METRICS_EXPORTER", "otlp,console"),
            ("OTEL_TRACES_SAMPLER", "xray"),
        ];
        for (name, value) in table {
            let (_, mistakes) = read(&[AT, (name, value)]);
            assert!(!mistakes.is_empty(), "{name}={value}");
            for mistake in mistakes {
                assert!(mistake.contains(name), "{mistake}");
            }
        }
        for ratio in ["", "1.5", "NaN", "x"] {
            let sampler = ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio");
            let (_, mistakes) = read(&[AT, sampler, ("OTEL_TRACES_SAMPLER_ARG", ratio)]);
            assert_eq!(mistakes.len(), 1, "{ratio}: {mistakes:?}");
            assert!(mistakes[0].contains("OTEL_TRACES_SAMPLER_ARG"));
        }
    }

    #[test]
    fn a_password_in_an_endpoint_is_not_shown() {
        let (_, mistakes) = read(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "ftp://me:canary@collector")]);
        assert!(!mistakes.is_empty());
        assert!(!mistakes.concat().contains("canary"), "{mistakes:?}");
    }
}
