//! The port a guest kernel reports its panic at (the pvpanic device, which Linux has a driver for).

use super::bus::PortDevice;
use super::event::{Event, Events};

/// The kernel has panicked.
const PANICKED: u8 = 1;
/// The kernel has panicked and starts its crash kernel, which deals with it.
const CRASH_LOADED: u8 = 2;

/// The device: reads tell which events it knows, writes are events.
pub struct PanicPort(pub Events);

impl PortDevice for PanicPort {
    fn read(&self, _: u16, data: &mut [u8]) {
        data.fill(0);
        if let Some(events) = data.first_mut() {
            *events = PANICKED | CRASH_LOADED;
        }
    }

    fn write(&self, _: u16, data: &[u8]) {
        match *data {
            [event] if event & CRASH_LOADED != 0 => {
                tracing::warn!("The guest's kernel panicked and starts its crash kernel")
            }
            [event] if event & PANICKED != 0 => {
                self.0.send(Event::Crashed("its kernel panicked; its console says why".to_owned()));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn only_a_panic_without_a_crash_kernel_ends_the_machine() {
        let (sender, events) = channel();
        let port = PanicPort(Events::new(sender));
        let mut known = [0xff; 2];
        port.read(0, &mut known);
        assert_eq!(known, [PANICKED | CRASH_LOADED, 0]);
        for ignored in [&[0][..], &[CRASH_LOADED], &[4], &[PANICKED, 0]] {
            port.write(0, ignored);
        }
        assert!(events.try_recv().is_err());
        port.write(0, &[PANICKED]);
        assert!(matches!(events.try_recv(), Ok(Event::Crashed(_))));
    }
}
