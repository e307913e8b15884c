//! Lengths of frames.

use std::io::{self, IoSlice};

use device_model::net::ETHERNET_HEADER;

/// A VLAN tag, which an MTU does not count.
const VLAN_TAG: usize = 4;

/// Longest frame of a link with this MTU, in bytes.
pub(crate) const fn max_len(mtu: u16) -> usize {
    mtu as usize + ETHERNET_HEADER + VLAN_TAG
}

/// The length of a frame that a link with this MTU can carry.
///
/// # Errors
///
/// `InvalidInput` when the frame has no whole header or does not fit.
pub(crate) fn checked_len(parts: &[IoSlice<'_>], mtu: u16) -> io::Result<usize> {
    let len = parts.iter().map(|part| part.len()).sum();
    if (ETHERNET_HEADER..=max_len(mtu)).contains(&len) {
        return Ok(len);
    }
    Err(io::ErrorKind::InvalidInput.into())
}

/// Copies the first bytes of a gathered frame into `buf`; how many there were.
pub(crate) fn peek(parts: &[IoSlice<'_>], buf: &mut [u8]) -> usize {
    let mut filled = 0;
    for part in parts {
        let room = &mut buf[filled..];
        let len = part.len().min(room.len());
        room[..len].copy_from_slice(&part[..len]);
        filled += len;
    }
    filled
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peek_gathers_across_parts_and_stops_at_either_end() {
        let parts = [IoSlice::new(&[1, 2]), IoSlice::new(&[]), IoSlice::new(&[3, 4, 5])];
        let mut buf = [0; 4];
        assert_eq!((peek(&parts, &mut buf), buf), (4, [1, 2, 3, 4]));
        let mut buf = [0; 8];
        assert_eq!((peek(&parts, &mut buf), buf), (5, [1, 2, 3, 4, 5, 0, 0, 0]));
    }

    #[test]
    fn length_is_bounded_by_header_and_mtu() {
        let frame = [0; 1519];
        let len = |n: usize| checked_len(&[IoSlice::new(&frame[..n])], 1500).ok();
        assert_eq!([len(13), len(14), len(1518), len(1519)], [None, Some(14), Some(1518), None]);
    }
}
