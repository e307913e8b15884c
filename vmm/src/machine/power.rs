//! Power-off, reset and the power button: the ACPI fixed hardware registers a stock kernel uses.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use device_model::save::{Record, RestoreError, SaveError, Saved};
use serde::{Deserialize, Serialize};

use super::bus::PortDevice;
use super::event::{Event, Events};
use super::layout::{RESET_VALUE, SCI_IRQ};
use crate::kvm::VmWithRam;

/// `SLP_TYPa` value of S5, as the `_S5_` package says.
pub const SLEEP_TYPE_S5: u8 = 5;

/// `PWRBTN_STS` and `PWRBTN_EN`, the same bit of both registers.
const POWER_BUTTON: u16 = 1 << 8;
/// `SCI_EN`: ACPI is on, there is no other mode.
const SCI_ENABLE: u16 = 1;
/// `SLP_EN`.
const SLEEP_ENABLE: u16 = 1 << 13;
/// Shift of `SLP_TYPx`.
const SLEEP_TYPE_SHIFT: u16 = 10;
/// Mask of `SLP_TYPx`, shifted down.
const SLEEP_TYPE_MASK: u16 = 7;

/// A level-triggered interrupt line.
pub trait Line: Send + Sync {
    /// Raises or lowers the line.
    fn set(&self, level: bool);
}

/// The system control interrupt of a KVM machine.
pub struct SciLine(pub Arc<VmWithRam>);

impl Line for SciLine {
    fn set(&self, level: bool) {
        if let Err(error) = self.0.fd().set_irq_line(SCI_IRQ, level) {
            tracing::warn!(%error, level, "Failed to set the ACPI interrupt line");
        }
    }
}

#[derive(Default)]
struct Registers {
    status: u16,
    enable: u16,
    control: u16,
}

/// The registers as they are saved.
#[derive(Serialize, Deserialize)]
struct PowerState {
    status: u16,
    enable: u16,
    control: u16,
}

impl Saved for PowerState {
    const KIND: &'static str = "ACPI power management";
    const VERSION: u16 = 1;
}

/// The PM1a event and control blocks (ACPI specification, "PM1 Event Grouping" and "PM1 Control Grouping").
pub struct PowerManagement {
    registers: Mutex<Registers>,
    sci: Box<dyn Line>,
    events: Events,
}

impl PowerManagement {
    /// Registers as after reset.
    pub fn new(sci: Box<dyn Line>, events: Events) -> Self {
        Self { registers: Mutex::default(), sci, events }
    }

    /// Presses the power button. A guest that has enabled it shuts down.
    pub fn press_power_button(&self) {
        let mut registers = self.lock();
        registers.status |= POWER_BUTTON;
        self.update_line(&registers);
    }

    /// Saves the registers.
    ///
    /// # Errors
    ///
    /// None in practice: the record is small.
    pub fn save(&self) -> Result<Record, SaveError> {
        let Registers { status, enable, control } = *self.lock();
        Record::new(&PowerState { status, enable, control })
    }

    /// Restores the registers. The interrupt line is where the interrupt controllers have it.
    ///
    /// # Errors
    ///
    /// When the record is damaged or of something else.
    pub fn restore(&self, record: &Record) -> Result<(), RestoreError> {
        let PowerState { status, enable, control } = record.open()?;
        *self.lock() = Registers { status, enable, control };
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Registers> {
        self.registers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update_line(&self, registers: &Registers) {
        self.sci.set(registers.status & registers.enable != 0);
    }

    fn write_control(&self, value: u16) {
        self.lock().control = value & !SLEEP_ENABLE;
        let sleep_type = value >> SLEEP_TYPE_SHIFT & SLEEP_TYPE_MASK;
        if value & SLEEP_ENABLE != 0 && sleep_type == u16::from(SLEEP_TYPE_S5) {
            self.events.send(Event::PowerOff);
        }
    }
}

/// The event block: status register, then enable register.
pub struct Pm1Event(pub Arc<PowerManagement>);

impl PortDevice for Pm1Event {
    fn read(&self, offset: u16, data: &mut [u8]) {
        let registers = self.0.lock();
        let [s0, s1] = registers.status.to_le_bytes();
        let [e0, e1] = registers.enable.to_le_bytes();
        copy_from(&[s0, s1, e0, e1], offset, data);
    }

    fn write(&self, offset: u16, data: &[u8]) {
        let mut registers = self.0.lock();
        for (port, byte) in (offset..4).zip(data) {
            let value = u16::from(*byte) << (8 * (port % 2));
            if port < 2 {
                registers.status &= !value;
            } else {
                registers.enable = registers.enable & !(0xff << (8 * (port % 2))) | value;
            }
        }
        self.0.update_line(&registers);
    }
}

/// The control block.
pub struct Pm1Control(pub Arc<PowerManagement>);

impl PortDevice for Pm1Control {
    fn read(&self, offset: u16, data: &mut [u8]) {
        let value = self.0.lock().control | SCI_ENABLE;
        copy_from(&value.to_le_bytes(), offset, data);
    }

    fn write(&self, offset: u16, data: &[u8]) {
        if let (0, Ok(bytes)) = (offset, data.try_into()) {
            self.0.write_control(u16::from_le_bytes(bytes));
        }
    }
}

/// The reset control register; anything but a reset is remembered by nobody.
pub struct ResetControl(pub Events);

impl PortDevice for ResetControl {
    fn read(&self, _: u16, data: &mut [u8]) {
        data.fill(0);
    }

    fn write(&self, _: u16, data: &[u8]) {
        if data == [RESET_VALUE] {
            self.0.send(Event::Reset);
        }
    }
}

/// The command port of a keyboard controller: never busy, and 0xfe pulses the reset line.
pub struct KeyboardReset(pub Events);

impl PortDevice for KeyboardReset {
    fn read(&self, _: u16, data: &mut [u8]) {
        data.fill(0);
    }

    fn write(&self, _: u16, data: &[u8]) {
        if data == [0xfe] {
            self.0.send(Event::Reset);
        }
    }
}

fn copy_from(registers: &[u8], offset: u16, data: &mut [u8]) {
    for (byte, register) in data.iter_mut().zip(registers.iter().skip(usize::from(offset))) {
        *byte = *register;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use super::*;

    struct TestLine(Arc<Mutex<bool>>);

    impl Line for TestLine {
        fn set(&self, level: bool) {
            *self.0.lock().unwrap() = level;
        }
    }

    fn power() -> (Arc<PowerManagement>, Arc<Mutex<bool>>, Receiver<Event>) {
        let level = Arc::new(Mutex::new(false));
        let (sender, receiver) = channel();
        let power = PowerManagement::new(Box::new(TestLine(Arc::clone(&level))), Events::new(sender));
        (Arc::new(power), level, receiver)
    }

    #[test]
    fn only_s5_with_sleep_enable_powers_off() {
        let (power, _, events) = power();
        let control = Pm1Control(power);
        let s5 = u16::from(SLEEP_TYPE_S5) << SLEEP_TYPE_SHIFT;
        control.write(0, &s5.to_le_bytes());
        control.write(0, &SLEEP_ENABLE.to_le_bytes());
        assert!(events.try_recv().is_err());
        control.write(0, &(s5 | SLEEP_ENABLE).to_le_bytes());
        assert_eq!(events.try_recv(), Ok(Event::PowerOff));
    }

    #[test]
    fn acpi_mode_is_always_on() {
        let control = Pm1Control(power().0);
        let mut value = [0; 2];
        control.read(0, &mut value);
        assert_eq!(value, [1, 0]);
    }

    #[test]
    fn power_button_raises_the_line_until_acknowledged() {
        let (power, level, _) = power();
        let event = Pm1Event(Arc::clone(&power));
        power.press_power_button();
        assert!(!*level.lock().unwrap(), "not enabled yet");
        event.write(2, &POWER_BUTTON.to_le_bytes());
        assert!(*level.lock().unwrap());
        let mut status = [0; 2];
        event.read(0, &mut status);
        assert_eq!(status, POWER_BUTTON.to_le_bytes());
        event.write(0, &POWER_BUTTON.to_le_bytes());
        assert!(!*level.lock().unwrap());
    }

    #[test]
    fn accesses_of_odd_shape_do_nothing() {
        let (power, _, events) = power();
        let (event, control) = (Pm1Event(Arc::clone(&power)), Pm1Control(power));
        let mut data = [0xff; 8];
        event.read(3, &mut data);
        control.read(1, &mut data);
        event.write(3, &[0xff; 8]);
        control.write(1, &[0xff; 2]);
        control.write(0, &[0xff; 4]);
        assert!(events.try_recv().is_err());
    }

    #[test]
    fn reset_needs_the_documented_value() {
        let (sender, events) = channel();
        let events_out = Events::new(sender);
        ResetControl(events_out.clone()).write(0, &[2]);
        KeyboardReset(events_out.clone()).write(0, &[0xaa]);
        assert!(events.try_recv().is_err());
        ResetControl(events_out.clone()).write(0, &[RESET_VALUE]);
        KeyboardReset(events_out).write(0, &[0xfe]);
        assert_eq!(events.try_iter().collect::<Vec<_>>(), [Event::Reset, Event::Reset]);
    }
}
