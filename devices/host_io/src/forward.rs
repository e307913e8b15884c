//! What a decorator leaves as it is.

/// Implements the named methods of [`device_model::net::Link`] by those of the field `inner`.
macro_rules! forward_to_inner {
    ($($method:ident),+) => { $($crate::forward::forward_to_inner!(@ $method);)+ };
    (@ recv) => {
        fn recv(&self, buf: &mut [u8]) -> std::io::Result<Option<usize>> {
            self.inner.recv(buf)
        }
    };
    (@ recv_batch) => {
        fn recv_batch(
            &self,
            buf: &mut [u8],
            most: usize,
            frames: &mut Vec<std::ops::Range<usize>>,
        ) -> std::io::Result<()> {
            self.inner.recv_batch(buf, most, frames)
        }
    };
    (@ readable_fd) => {
        fn readable_fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
            self.inner.readable_fd()
        }
    };
    (@ mtu) => {
        fn mtu(&self) -> u16 {
            self.inner.mtu()
        }
    };
    (@ is_up) => {
        fn is_up(&self) -> bool {
            self.inner.is_up()
        }
    };
}

pub(crate) use forward_to_inner;
