//! Functions that the compiler calls to move memory and that a C library would bring.
//!
//! They use string instructions, so that the compiler cannot turn their loops into calls of themselves.

use core::arch::asm;

/// C's `memcpy`.
///
/// # Safety
///
/// As in C.
// SAFETY: the program has no C library, so the name is free.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, length: usize) -> *mut u8 {
    // SAFETY: the caller vouches for both ranges.
    unsafe {
        asm!("rep movsb", inout("rcx") length => _, inout("rdi") to => _, inout("rsi") from => _, options(nostack));
    }
    to
}

/// C's `memmove`.
///
/// # Safety
///
/// As in C.
// SAFETY: as above.
#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, length: usize) -> *mut u8 {
    if (to as usize).wrapping_sub(from as usize) >= length {
        // SAFETY: the target does not start inside of the source, so copying upwards is right.
        return unsafe { memcpy(to, from, length) };
    }
    let (last_to, last_from) =
        (to.wrapping_add(length).wrapping_sub(1), from.wrapping_add(length).wrapping_sub(1));
    // SAFETY: the caller vouches for both ranges; the direction flag is clear again afterwards.
    unsafe {
        asm!(
            "std", "rep movsb", "cld",
            inout("rcx") length => _, inout("rdi") last_to => _, inout("rsi") last_from => _,
            options(nostack)
        );
    }
    to
}

/// C's `memset`.
///
/// # Safety
///
/// As in C.
// SAFETY: as above.
#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, value: i32, length: usize) -> *mut u8 {
    // SAFETY: the caller vouches for the range.
    unsafe {
        asm!("rep stosb", inout("rcx") length => _, inout("rdi") to => _, in("al") value as u8, options(nostack));
    }
    to
}

/// C's `memcmp`.
///
/// # Safety
///
/// As in C.
// SAFETY: as above.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(left: *const u8, right: *const u8, length: usize) -> i32 {
    for place in 0..length {
        // SAFETY: the caller vouches for the range.
        let left = unsafe { left.wrapping_add(place).read_volatile() };
        // SAFETY: as above.
        let right = unsafe { right.wrapping_add(place).read_volatile() };
        if left != right {
            return i32::from(left) - i32::from(right);
        }
    }
    0
}

/// C's `bcmp`.
///
/// # Safety
///
/// As in C.
// SAFETY: as above.
#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(left: *const u8, right: *const u8, length: usize) -> i32 {
    // SAFETY: the caller vouches for both ranges.
    unsafe { memcmp(left, right, length) }
}

/// What unwinding would go on with. The standard `alloc` crate is compiled to unwind and names it; panics end the
/// machine before it could be called.
// SAFETY: no unwinder is linked, so the name is free.
#[unsafe(no_mangle)]
extern "C" fn _Unwind_Resume() -> ! {
    crate::io::exit(3)
}

/// What an unwinder would ask about a frame; as above.
// SAFETY: as above.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() -> ! {
    crate::io::exit(3)
}
