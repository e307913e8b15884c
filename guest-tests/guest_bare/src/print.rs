//! Lines on the first serial port.

use alloc::string::String;
use core::fmt::{self, Write};

use crate::io;

/// The serial port as something to write to. A line is sent at once: every exit of the CPU costs more than its bytes.
#[derive(Default)]
struct Line(String);

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.push_str(text);
        Ok(())
    }
}

/// Prints a line.
pub fn print(arguments: fmt::Arguments<'_>) {
    let mut line = Line::default();
    // Writing to memory cannot fail.
    let _ = line.write_fmt(arguments);
    line.0.push('\n');
    io::serial(line.0.as_bytes());
}

/// Prints a line, as the standard library's macro of this name does.
macro_rules! println {
    ($($arguments:tt)*) => { $crate::print::print(::core::format_args!($($arguments)*)) };
}

pub(crate) use println;
