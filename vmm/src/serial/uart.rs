//! The guest side of a serial port: a 16550.

use std::convert::Infallible;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use device_model::doorbell::Bell;
use device_model::save::{Record, RestoreError, SaveError, Saved};
use serde::{Deserialize, Serialize};
use vm_superio::Trigger;
use vm_superio::serial::{Serial, SerialEvents, SerialState};

use super::output::OutputQueue;
use crate::io::EventBell;
use crate::machine::PortDevice;

/// The port's interrupt line.
#[derive(Clone)]
struct Interrupt(Arc<EventBell>);

impl Trigger for Interrupt {
    type E = Infallible;

    fn trigger(&self) -> Result<(), Infallible> {
        self.0.ring();
        Ok(())
    }
}

/// Tells the console that the guest has read all input.
#[derive(Clone)]
struct InputDrained(Arc<EventBell>);

impl SerialEvents for InputDrained {
    fn buffer_read(&self) {}
    fn out_byte(&self) {}
    fn tx_lost_byte(&self) {}

    fn in_buffer_empty(&self) {
        self.0.ring();
    }
}

/// Where the port's output goes.
#[derive(Clone)]
struct Output(Option<Arc<OutputQueue>>);

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(queue) = &self.0 {
            queue.push(bytes);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A serial port of one machine.
pub struct Uart {
    serial: Mutex<Serial<Interrupt, InputDrained, Output>>,
    output: Option<Arc<OutputQueue>>,
    /// What the port was made with, and is made with again when it is restored.
    parts: (Interrupt, InputDrained, Output),
}

/// The port as it is saved.
#[derive(Debug, Serialize, Deserialize)]
struct UartState {
    divisor: [u8; 2],
    interrupt_enable: u8,
    interrupt_identification: u8,
    line_control: u8,
    line_status: u8,
    modem_control: u8,
    modem_status: u8,
    scratch: u8,
    input: Vec<u8>,
}

impl Saved for UartState {
    const KIND: &'static str = "serial port";
    const VERSION: u16 = 1;
}

impl From<SerialState> for UartState {
    fn from(state: SerialState) -> Self {
        Self {
            divisor: [state.baud_divisor_low, state.baud_divisor_high],
            interrupt_enable: state.interrupt_enable,
            interrupt_identification: state.interrupt_identification,
            line_control: state.line_control,
            line_status: state.line_status,
            modem_control: state.modem_control,
            modem_status: state.modem_status,
            scratch: state.scratch,
            input: state.in_buffer,
        }
    }
}

impl From<UartState> for SerialState {
    fn from(state: UartState) -> Self {
        let [baud_divisor_low, baud_divisor_high] = state.divisor;
        Self {
            baud_divisor_low,
            baud_divisor_high,
            interrupt_enable: state.interrupt_enable,
            interrupt_identification: state.interrupt_identification,
            line_control: state.line_control,
            line_status: state.line_status,
            modem_control: state.modem_control,
            modem_status: state.modem_status,
            scratch: state.scratch,
            in_buffer: state.input,
        }
    }
}

impl Uart {
    /// A port that interrupts through `interrupt`, writes to `output` (nowhere if `None`) and rings `drained` when the
    /// guest has read all input.
    pub fn new(interrupt: EventBell, output: Option<Arc<OutputQueue>>, drained: Arc<EventBell>) -> Self {
        let parts = (Interrupt(Arc::new(interrupt)), InputDrained(drained), Output(output.clone()));
        let (interrupt, drained, out) = parts.clone();
        Self { serial: Mutex::new(Serial::with_events(interrupt, drained, out)), output, parts }
    }

    /// Saves the port. Output is with the console already.
    ///
    /// # Errors
    ///
    /// None in practice: the record is small.
    pub fn save(&self) -> Result<Record, SaveError> {
        Record::new(&UartState::from(self.lock().state()))
    }

    /// Restores the port.
    ///
    /// # Errors
    ///
    /// When the record is damaged, or holds more input than the port has room for.
    pub fn restore(&self, record: &Record) -> Result<(), RestoreError> {
        let state: SerialState = record.open::<UartState>()?.into();
        let (interrupt, drained, out) = self.parts.clone();
        let serial = Serial::from_state(&state, interrupt, drained, out)
            .map_err(|e| RestoreError::invalid::<UartState>(format!("{e:?}")))?;
        *self.lock() = serial;
        Ok(())
    }

    /// Gives the guest as much of `input` as it has room for and returns how much that was. `None` when the port is
    /// busy: try again. Never waits for a vCPU.
    pub fn offer(&self, input: &[u8]) -> Option<usize> {
        let mut serial = match self.serial.try_lock() {
            Ok(serial) => serial,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let count = serial.fifo_capacity().min(input.len());
        // A port in loopback mode hears nothing from outside.
        Some(serial.enqueue_raw_bytes(&input[..count]).unwrap_or(0))
    }

    fn lock(&self) -> MutexGuard<'_, Serial<Interrupt, InputDrained, Output>> {
        self.serial.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PortDevice for Uart {
    fn read(&self, offset: u16, data: &mut [u8]) {
        let mut serial = self.lock();
        for byte in data {
            *byte = serial.read(offset as u8);
        }
    }

    fn write(&self, offset: u16, data: &[u8]) {
        let mut serial = self.lock();
        for byte in data {
            if let Err(error) = serial.write(offset as u8, *byte) {
                device_model::guest_warn!(?error, "Serial port write failed");
            }
        }
        drop(serial);
        if offset == 0
            && let Some(output) = &self.output
        {
            output.wait_for_room();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uart() -> (Uart, Arc<OutputQueue>, Arc<EventBell>) {
        let drained = Arc::new(EventBell::new().unwrap());
        let queue = Arc::new(OutputQueue::new(Arc::new(EventBell::new().unwrap()), true));
        (Uart::new(EventBell::new().unwrap(), Some(Arc::clone(&queue)), Arc::clone(&drained)), queue, drained)
    }

    #[test]
    fn string_output_arrives_in_order() {
        let (uart, queue, _) = uart();
        uart.write(0, b"hello");
        let mut chunk = [0; 8];
        assert_eq!(queue.peek(&mut chunk), 5);
        assert_eq!(&chunk[..5], b"hello");
    }

    #[test]
    fn input_is_taken_up_to_the_fifo_and_asked_for_again_when_drained() {
        let (uart, _, drained) = uart();
        let taken = uart.offer(&[b'z'; 100]).unwrap();
        assert!((1..100).contains(&taken));
        assert_eq!(uart.offer(b"more"), Some(0));
        assert!(!drained.clear());
        let mut input = vec![0; taken];
        uart.read(0, &mut input);
        assert_eq!(input, vec![b'z'; taken]);
        assert!(drained.clear());
        assert_eq!(uart.offer(b"more"), Some(4));
    }
}
