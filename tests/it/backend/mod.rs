//! Tests of child processes: launch, confinement, supervision and sharing.

pub(crate) mod misbehaving_children;
pub(crate) mod noisy_children;
pub(crate) mod prepare;
pub(crate) mod reach;
pub(crate) mod sandbox;
pub(crate) mod shared_children;
pub(crate) mod supervision;
