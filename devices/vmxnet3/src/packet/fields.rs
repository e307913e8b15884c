//! Fields of headers at known offsets.

/// `N` bytes at `offset`; zeros outside, which callers rule out.
pub(crate) fn bytes<const N: usize>(frame: &[u8], offset: usize) -> [u8; N] {
    frame.get(offset..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
}

/// Stores `value` at `offset`, if it lies inside.
pub(crate) fn put(frame: &mut [u8], offset: usize, value: &[u8]) {
    if let Some(field) = frame.get_mut(offset..offset + value.len()) {
        field.copy_from_slice(value);
    }
}

/// Stores `value`, or the largest number if it is too large, in network byte order.
pub(crate) fn put_u16(frame: &mut [u8], offset: usize, value: usize) {
    put(frame, offset, &u16::try_from(value).unwrap_or(u16::MAX).to_be_bytes());
}
