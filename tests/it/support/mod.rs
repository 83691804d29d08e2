//! Support of the tests: gateways, services, clients and injected faults.

pub(crate) mod balancer;
pub(crate) mod browser;
pub(crate) mod cluster;
pub(crate) mod collector;
pub(crate) mod cutter;
pub(crate) mod dpop;
pub(crate) mod faulty;
pub(crate) mod gauges;
pub(crate) mod harness;
pub(crate) mod issuer;
pub(crate) mod modern;
pub(crate) mod mutator;
pub(crate) mod oauth_client;
pub(crate) mod pair;
pub(crate) mod postgres;
pub(crate) mod redis;
pub(crate) mod reverse_proxy;
pub(crate) mod served;
pub(crate) mod stage;
pub(crate) mod wire;
