//! The default sampler: so many traces a second are recorded, whoever asks for them.
//!
//! Not here: the samplers that `OTEL_TRACES_SAMPLER` names, which are those of the SDK.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use opentelemetry::{
    Context, KeyValue,
    trace::{Link, SpanKind, TraceId, TraceState},
};
use opentelemetry_sdk::trace::{Sampler, SamplingDecision, SamplingResult, ShouldSample};
use tokio::time::Instant;

/// The traces that are begun in each second of a kind.
pub(super) const TRACES_PER_SECOND: u32 = 100;

/// Permits so many events in each second.
#[derive(Clone, Debug)]
pub(super) struct PerSecond(Arc<Counted>);

#[derive(Debug)]
struct Counted {
    began: Instant,
    /// The second since the begin, and the events in it.
    last: AtomicU64,
}

impl PerSecond {
    /// Begins to count.
    pub(super) fn new() -> Self {
        Self(Arc::new(Counted {
            began: Instant::now(),
            last: AtomicU64::new(0),
        }))
    }

    /// Counts one more event, if it is within the bound.
    pub(super) fn admits(&self) -> bool {
        self.admits_at(self.0.began.elapsed().as_secs())
    }

    fn admits_at(&self, second: u64) -> bool {
        let second = second & u64::from(u32::MAX);
        let next = |last: u64| {
            let (of, count) = (last >> 32, last & u64::from(u32::MAX));
            if of != second {
                return Some(second << 32 | 1);
            }
            (count < u64::from(TRACES_PER_SECOND)).then_some(last + 1)
        };
        let order = Ordering::Relaxed;
        self.0.last.fetch_update(order, order, next).is_ok()
    }
}

/// Records new traces within the bound, and the spans of recorded ones.
pub(super) fn default_sampler() -> Sampler {
    Sampler::ParentBased(Box::new(PerSecond::new()))
}

impl ShouldSample for PerSecond {
    fn should_sample(
        &self,
        _parent: Option<&Context>,
        _trace: TraceId,
        _name: &str,
        _kind: &SpanKind,
        _attributes: &[KeyValue],
        _links: &[Link],
    ) -> SamplingResult {
        let decision = if self.admits() {
            SamplingDecision::RecordAndSample
        } else {
            SamplingDecision::Drop
        };
        SamplingResult {
            decision,
            attributes: Vec::new(),
            trace_state: TraceState::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::sampling::*;

    #[tokio::test]
    async fn each_second_has_its_own_bound() {
        let events = PerSecond::new();
        let admitted = |second| (0..1000).filter(|_| events.admits_at(second)).count();
        let bound = TRACES_PER_SECOND as usize;
        assert_eq!([admitted(0), admitted(0), admitted(1)], [bound, 0, bound]);
        assert!(events.admits_at(2) && events.admits_at(7));
    }
}
