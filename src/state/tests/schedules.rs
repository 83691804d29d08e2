//! Seeded schedules of two owners and one session: messages are lost or delayed, and owners freeze
//! and die, but all readers see the same stream.

use std::collections::BTreeMap;

use bytes::Bytes;
use futures_util::future::join_all;

use super::contract::{KINDS, PLENTY, Server, Side, session};
use crate::protocol::StreamId;
use crate::state::{ClaimFrom, Fence, Record, SessionId, StoreError};

/// A pseudo-random generator; equal seeds give equal numbers.
struct Chance(u64);

impl Chance {
    /// A number below `most`.
    fn below(&mut self, most: u64) -> u64 {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % most
    }

    fn is_one_in(&mut self, number: u64) -> bool {
        self.below(number) == 0
    }
}

/// A replica that may own the session.
struct Owner {
    side: Side,
    /// The ownership that it believes to have; another replica may have claimed the session since.
    hold: Option<Hold>,
    /// The record that it has read for its next claim.
    seen: Option<Record>,
    /// The number of steps for which it stays frozen.
    frozen: u64,
}

/// Ownership of the session, as the owner knows it.
#[derive(Clone, Copy)]
struct Hold {
    fence: u64,
    /// The number of the last acknowledged event; none until `look` has read it.
    last: Option<u64>,
    /// The stream of a call whose response it writes.
    call: Option<StreamId>,
}

/// The true state, against which replicas are checked.
struct World<'a> {
    server: Option<&'a Server>,
    id: SessionId,
    owners: [Owner; 2],
    chance: Chance,
    /// The events that were acknowledged to an owner, and that it may have sent to clients.
    kept: BTreeMap<u64, Bytes>,
    /// The events that clients have read.
    read: BTreeMap<u64, Bytes>,
    /// The session's fence.
    fence: u64,
    /// The highest fence of a successful write.
    written: u64,
    /// The last stream of a call.
    calls: StreamId,
    /// The responses that were acknowledged, each the only event of its stream.
    responses: BTreeMap<StreamId, Bytes>,
    lives: u64,
}

impl World<'_> {
    async fn step(&mut self) {
        let at = usize::from(self.chance.is_one_in(2));
        if self.owners[at].frozen > 0 {
            self.owners[at].frozen -= 1;
            return;
        }
        match self.chance.below(20) {
            0 => self.owners[at].frozen = self.chance.below(20),
            1 => self.kill(at).await,
            2 => self.cut(),
            3..8 => self.read(at).await,
            8 => self.keep(at).await,
            9..12 => self.respond(at).await,
            _ => match self.owners[at].hold {
                Some(Hold { last: Some(_), .. }) => self.append(at).await,
                Some(_) => self.look(at).await,
                None => self.claim(at).await,
            },
        }
    }

    async fn append(&mut self, at: usize) {
        let owner = &mut self.owners[at];
        let hold = owner.hold.unwrap();
        let number = hold.last.unwrap() + 1;
        let event = Bytes::from(format!("{} {number}", hold.fence));
        let write = owner.side.log.append(
            &owner.side.spot(&self.id.0, 0, hold.fence),
            number,
            event.clone(),
            None,
        );
        if self.chance.is_one_in(5) {
            // The request or its response is lost. The owner retries.
            tokio::task::yield_now().await;
            return;
        }
        match write.await {
            Ok(()) => {
                owner.hold = Some(Hold {
                    last: Some(number),
                    ..hold
                });
                assert!(hold.fence >= self.written, "a write of an old owner");
                self.written = hold.fence;
                let other = self.kept.insert(number, event.clone());
                assert!(
                    other.is_none_or(|other| other == event),
                    "two events {number}"
                );
            }
            Err(StoreError::Fenced) => self.fenced(at).await,
            Err(error) => panic!("{error}"),
        }
    }

    /// Writes the response to a call as a stream of its own: its beginning, one event and its end.
    async fn respond(&mut self, at: usize) {
        let owner = &mut self.owners[at];
        let Some(hold) = owner.hold else { return };
        let stream = hold.call.unwrap_or_else(|| {
            self.calls += 1;
            self.calls
        });
        owner.hold = Some(Hold {
            call: Some(stream),
            ..hold
        });
        let spot = owner.side.spot(&self.id.0, stream, hold.fence);
        let event = Bytes::from(format!("{} {stream}", hold.fence));
        let writes = [
            owner.side.log.open(&spot, 0, Bytes::new()),
            owner.side.log.append(&spot, 1, event.clone(), None),
            owner.side.log.end(&spot),
        ];
        if self.chance.is_one_in(5) {
            // The request or its response is lost. The owner repeats all three.
            tokio::task::yield_now().await;
            return;
        }
        let written = join_all(writes).await;
        if written.iter().all(Result::is_ok) {
            assert!(hold.fence >= self.written, "a write of an old owner");
            self.written = hold.fence;
            owner.hold = Some(Hold { call: None, ..hold });
            self.responses.insert(stream, event);
        } else {
            assert!(
                written.iter().all(|one| *one == Err(StoreError::Fenced)),
                "{written:?}"
            );
            self.fenced(at).await;
        }
    }

    /// Writes for the first time as the new owner, which fences the previous owner, and reads the
    /// number of the last event.
    async fn look(&mut self, at: usize) {
        let owner = &mut self.owners[at];
        let hold = owner.hold.unwrap();
        let spot = owner.side.spot(&self.id.0, 0, hold.fence);
        match owner.side.log.open(&spot, 0, Bytes::new()).await {
            Ok(()) => {
                assert!(hold.fence >= self.written, "a write of an old owner");
                self.written = hold.fence;
                let found = owner.side.log.streams(&self.id).await.unwrap();
                let listener = found.open.iter().find(|open| open.stream == 0);
                owner.hold = Some(Hold {
                    last: listener.map(|open| open.last),
                    ..hold
                });
            }
            Err(StoreError::Fenced) => self.fenced(at).await,
            Err(error) => panic!("{error}"),
        }
    }

    async fn claim(&mut self, at: usize) {
        let owner = &mut self.owners[at];
        // The record may be stale by the time the claim uses it.
        let Some(seen) = owner.seen.take() else {
            let found = owner.side.directory.find(&self.id).await.unwrap();
            owner.seen = Some(found.unwrap().record);
            return;
        };
        let directory = &owner.side.directory;
        let me = &owner.side.me;
        let claimed = directory.claim(&self.id, &seen, me, ClaimFrom::Any).await;
        if let Some(Fence(fence)) = claimed.unwrap().map(|claimed| claimed.fence) {
            assert_eq!(fence, self.fence + 1, "one owner for each number");
            self.fence = fence;
            // The response may be lost. Then no replica acts as the owner until the next claim.
            let hold = Hold {
                fence,
                last: None,
                call: None,
            };
            owner.hold = (!self.chance.is_one_in(10)).then_some(hold);
        }
    }

    async fn fenced(&mut self, at: usize) {
        let hold = self.owners[at].hold.take().unwrap();
        assert!(hold.fence < self.fence, "only an old owner is fenced");
        self.release(at).await;
    }

    /// Releases the replica's own copy of the session. In memory the replicas share one log, and
    /// there are no copies.
    async fn release(&self, at: usize) {
        if self.server.is_some() {
            self.owners[at].side.log.release(&self.id).await;
        }
    }

    async fn keep(&mut self, at: usize) {
        let Some(hold) = self.owners[at].hold else {
            return;
        };
        let directory = &self.owners[at].side.directory;
        let kept = directory.keep(&self.id, Fence(hold.fence), None).await;
        assert_eq!(kept.is_ok(), hold.fence == self.fence);
    }

    /// Reads as a client of this replica. An owner delivers events up to the last acknowledged one;
    /// another replica delivers all events in the log.
    async fn read(&mut self, at: usize) {
        let owner = &self.owners[at];
        let last = match owner.hold {
            Some(Hold { last: None, .. }) => return,
            Some(hold) => hold.last.unwrap(),
            None => u64::MAX,
        };
        let after = self.chance.below(self.kept.len() as u64 + 1);
        if let Ok(page) = owner.side.log.read(&self.id, 0, after).await {
            for (expected, (number, event)) in (after + 1..).zip(page.events) {
                assert_eq!(number, expected, "no gap");
                if number > last {
                    break;
                }
                let other = self.read.insert(number, event.clone());
                assert!(
                    other.is_none_or(|other| other == event),
                    "another event {number}"
                );
            }
        }
    }

    async fn kill(&mut self, at: usize) {
        self.lives += 1;
        let boot = format!("{at} {}", self.lives);
        let side = match self.server {
            Some(server) => Side::on(server, &boot, PLENTY).await,
            None => self.owners[at].side.again(&boot),
        };
        let owner = Owner {
            side,
            hold: None,
            seen: None,
            frozen: 0,
        };
        // The replica dies without a release.
        std::mem::replace(&mut self.owners[at], owner)
            .side
            .halt
            .cancel();
    }

    fn cut(&self) {
        if let Some(server) = self.server {
            server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
        }
    }

    /// Checks that the log has every acknowledged event and every event read, once and in order, and
    /// every acknowledged response with its end.
    async fn judge(&self, reader: &Side) {
        let mut all = BTreeMap::new();
        loop {
            let after = all.len() as u64;
            let page = reader.log.read(&self.id, 0, after).await;
            let events = page.map(|page| page.events).unwrap_or_default();
            if events.is_empty() {
                break;
            }
            all.extend(events);
        }
        assert!(all.keys().copied().eq(1..=all.len() as u64), "no gap");
        for (number, event) in self.kept.iter().chain(&self.read) {
            assert_eq!(all.get(number), Some(event), "event {number}");
        }
        for (stream, event) in &self.responses {
            let page = reader.log.read(&self.id, *stream, 0).await.unwrap();
            assert_eq!(page.events, [(1, event.clone())], "stream {stream}");
            assert!(page.is_end, "stream {stream}");
        }
    }
}

async fn run(seed: u64, server: Option<&Server>) -> usize {
    let id = format!("s{seed}");
    let sides = if let Some(server) = server {
        [
            Side::on(server, "0", PLENTY).await,
            Side::on(server, "1", PLENTY).await,
        ]
    } else {
        let side = Side::in_memory(PLENTY).await;
        [side.again("0"), side.again("1")]
    };
    sides[0].add(&id, 1).await.unwrap();
    let mut world = World {
        server,
        id: session(&id),
        owners: sides.map(|side| Owner {
            side,
            hold: None,
            seen: None,
            frozen: 0,
        }),
        chance: Chance(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
        kept: BTreeMap::new(),
        read: BTreeMap::new(),
        fence: 1,
        written: 0,
        calls: 0,
        responses: BTreeMap::new(),
        lives: 0,
    };
    world.owners[0].hold = Some(Hold {
        fence: 1,
        last: None,
        call: None,
    });
    for _ in 0..200 {
        world.step().await;
    }
    world.release(0).await;
    world.judge(&world.owners[0].side).await;
    let kept = world.kept.len();
    for owner in world.owners {
        owner.side.halt.cancel();
    }
    kept
}

/// Runs all seeds; prints the seed that fails.
async fn all(seeds: std::ops::Range<u64>, server: Option<&Server>) {
    let mut kept = 0;
    for seed in seeds.clone() {
        let said = Said(seed);
        kept += run(seed, server).await;
        std::mem::forget(said);
    }
    let each = kept as u64 / (seeds.end - seeds.start);
    assert!(each >= 10, "too little happens: {each} events a seed");
}

/// Prints the seed when its run panics.
struct Said(u64);

impl Drop for Said {
    fn drop(&mut self) {
        println!("seed {}", self.0);
    }
}

/// The seeds of a test: `of_thousand` times `SCALE`, which the bench sets to 10.
#[expect(
    clippy::disallowed_methods,
    reason = "the environment sets the amount of tests"
)]
fn seeds(of_thousand: u64) -> std::ops::Range<u64> {
    let scale = std::env::var("SCALE").map_or(1, |scale| scale.parse().unwrap());
    1..of_thousand * scale + 1
}

#[tokio::test]
async fn no_schedule_makes_two_streams_of_one_in_memory() {
    all(seeds(1000), None).await;
}

#[tokio::test]
async fn no_schedule_makes_two_streams_of_one_in_redis() {
    for kind in KINDS {
        let server = Server::start(kind);
        all(seeds(20), Some(&server)).await;
    }
}
