//! Body of a hop, compared to the digest that its header signs.
//!
//! The end of another body is an error, so that a route that reads it whole never acts on it.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use axum::body::Body;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};

use crate::base::Sha256;

/// A body that fails at its end unless it has the signed digest.
pub(super) struct SignedBody {
    inner: Body,
    /// None once it was compared.
    digest: Option<Sha256>,
    signed: [u8; 32],
}

/// The body is another than the sender signed.
#[derive(Debug, thiserror::Error)]
#[error("another body than was signed")]
struct OtherBody;

impl SignedBody {
    /// Wraps the body of a hop.
    pub(super) fn new(inner: Body, signed: [u8; 32]) -> Self {
        let digest = Some(Sha256::new());
        Self {
            inner,
            digest,
            signed,
        }
    }

    fn check(&mut self) -> Result<(), axum::Error> {
        let digest = self.digest.take().map(Sha256::finish);
        if digest.is_some_and(|digest| digest != self.signed) {
            return Err(axum::Error::new(OtherBody));
        }
        Ok(())
    }
}

impl HttpBody for SignedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        let frame = ready!(Pin::new(&mut this.inner).poll_frame(cx));
        if let (Some(Ok(frame)), Some(digest)) = (&frame, &mut this.digest)
            && let Some(data) = frame.data_ref()
        {
            digest.add(data);
        }
        // Compared with the last frame: a reader that knows the length may not ask for another.
        if (frame.is_none() || this.inner.is_end_stream())
            && let Err(error) = this.check()
        {
            return Poll::Ready(Some(Err(error)));
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.digest.is_none() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::super::signed_body::*;
    use crate::base::sha256;

    async fn read(body: Body, signed: &[u8]) -> Option<Bytes> {
        let whole = Body::new(SignedBody::new(body, sha256(signed))).collect();
        whole.await.ok().map(http_body_util::Collected::to_bytes)
    }

    #[tokio::test]
    async fn only_the_signed_body_is_read_to_its_end() {
        let pieces = || {
            let pieces = ["ab", "c"].map(Ok::<_, std::convert::Infallible>);
            Body::from_stream(futures_util::stream::iter(pieces))
        };
        assert_eq!(read(Body::from("abc"), b"abc").await.unwrap(), "abc");
        assert_eq!(read(pieces(), b"abc").await.unwrap(), "abc");
        assert_eq!(read(Body::empty(), b"").await.unwrap(), "");
        for (body, signed) in [
            (Body::from("abc"), &b"abd"[..]),
            (pieces(), b"ab"),
            (Body::empty(), b"abc"),
            (Body::from("abc"), b""),
        ] {
            assert!(read(body, signed).await.is_none(), "{signed:?}");
        }
    }
}
