//! Wait for descriptors.

use std::{
    os::fd::{BorrowedFd, OwnedFd},
    time::Duration,
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Waits until one of `fds` is readable, or for `longest`.
pub(crate) fn wait_for(fds: &[BorrowedFd<'_>], longest: Option<Duration>) {
    let longest = longest.and_then(|longest| Timespec::try_from(longest).ok());
    let mut fds = [fds[0], *fds.last().unwrap_or(&fds[0])]
        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    _ = poll(&mut fds, longest.as_ref());
}

/// Whether `fd` is readable now; a pidfd is once its process has ended.
pub(crate) fn is_readable(fd: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    poll(
        &mut fds,
        Some(&Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        }),
    )
    .is_ok_and(|count| count > 0)
}
