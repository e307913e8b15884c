//! The bus as it is saved: config space and MSI-X of each function, and what its device says of itself.

use device_model::save::{Record, Records, RestoreError, SaveError, Saved};
use serde::{Deserialize, Serialize};

use crate::bdf::Bdf;
use crate::device::MsiMessage;

/// A function without its device.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct FunctionState {
    pub(crate) config: Vec<u8>,
    pub(crate) vectors: Vec<VectorState>,
}

impl Saved for FunctionState {
    const KIND: &'static str = "PCI function";
    const VERSION: u16 = 1;
}

/// One MSI-X vector.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct VectorState {
    pub(crate) message: MsiMessage,
    pub(crate) masked: bool,
    pub(crate) pending: bool,
}

/// The root.
#[derive(Debug, Serialize, Deserialize)]
struct RootState {
    address: u32,
}

impl Saved for RootState {
    const KIND: &'static str = "PCI root";
    const VERSION: u16 = 1;
}

/// A device without state.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Stateless;

impl Saved for Stateless {
    const KIND: &'static str = "device without state";
    const VERSION: u16 = 1;
}

const ROOT: &str = "pci";

fn function_name(bdf: Bdf) -> String {
    format!("pci {bdf}")
}

fn device_name(bdf: Bdf) -> String {
    format!("pci {bdf} device")
}

impl crate::Root {
    /// Saves the bus and all devices on it. No vCPU runs, and no device is at work.
    ///
    /// # Errors
    ///
    /// When a device cannot be saved.
    pub fn save(&self, records: &mut Records) -> Result<(), SaveError> {
        records.put(ROOT, Record::new(&RootState { address: self.config_address() })?);
        for (bdf, function) in self.functions() {
            records.put(function_name(bdf), Record::new(&function.state())?);
            records.put(device_name(bdf), function.device().save()?);
        }
        Ok(())
    }

    /// Restores what [`Root::save`](Self::save) saved, in a bus that was built from the same configuration. Interrupts
    /// that were on their way then are signalled again: interrupt controllers must have been restored before.
    ///
    /// # Errors
    ///
    /// When the records are not of this bus and these devices, or are damaged. The machine must not run then.
    pub fn restore(&self, records: &mut Records) -> Result<(), RestoreError> {
        self.set_config_address(records.take(ROOT)?.open::<RootState>()?.address);
        for (bdf, function) in self.functions() {
            function.restore(records.take(&function_name(bdf))?.open()?)?;
            function.device().restore(&records.take(&device_name(bdf))?)?;
        }
        self.rebuild_decode();
        self.functions().for_each(|(_, function)| function.signal_all());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{CountingRouter, Fixture, MSIX};
    use crate::{RootBuilder, Window, Windows};
    use device_model::irq::Interrupts;

    fn root(fixture: &Fixture) -> crate::Root {
        let window = |base| Window { base, size: 1 << 30 };
        let mut builder = RootBuilder::new(Windows { low: window(0xc000_0000), high: window(1 << 40) });
        builder.plug(Bdf::new(1, 0).unwrap(), fixture.function.clone()).unwrap();
        builder.build().unwrap()
    }

    fn write_entry(fixture: &Fixture, vector: u64, control: u32) {
        for (at, word) in [(0, 0xfee0_0000_u32), (8, 0x40 + vector as u32), (12, control)] {
            fixture.function.write(MSIX.bar, vector * 16 + at, &word.to_le_bytes());
        }
    }

    #[test]
    fn restored_bus_answers_and_interrupts_as_the_saved_one() {
        let old = Fixture::new();
        let bus = root(&old);
        let msix = old.capabilities(0x11)[0];
        old.set_config_u16(4, 0b110);
        old.set_config_u16(msix + 2, 1 << 15);
        write_entry(&old, 3, 0);
        write_entry(&old, 4, 1);
        old.msix.signal(4);
        bus.port_write(0xcf8, &0x8000_0810_u32.to_le_bytes());
        let base = old.config_u32(0x14);

        let mut records = Records::default();
        bus.save(&mut records).unwrap();
        let new = Fixture::new();
        let moved = root(&new);
        moved.restore(&mut records).unwrap();
        assert_eq!(records.finish(), Ok(()));

        assert_eq!(new.config_u32(0x14), base);
        let mut data = [0; 4];
        moved.port_read(0xcf8, &mut data);
        assert_eq!(u32::from_le_bytes(data), 0x8000_0810);
        assert!(moved.memory_read(u64::from(base) + 8, &mut data));
        assert_eq!(data, [0x5a; 4]);
        let count = |router: &CountingRouter, vector| router.count(vector);
        assert_eq!(count(&new.router, 3), 1, "an interrupt that may have been on its way comes again");
        assert_eq!(count(&new.router, 4), 0);
        write_entry(&new, 4, 0);
        assert_eq!(count(&new.router, 4), 1, "what was pending fires once it is unmasked");
        assert!(
            new.router.set.lock().unwrap().contains(&(3, MsiMessage { address: 0xfee0_0000, data: 0x43 }))
        );
    }

    #[test]
    fn state_of_another_device_is_refused() {
        let fixture = Fixture::new();
        let mut state = fixture.function.state();
        state.config[2] ^= 1;
        assert!(matches!(fixture.function.restore(state), Err(RestoreError::Invalid { .. })));
        let mut state = fixture.function.state();
        state.vectors.pop();
        assert!(fixture.function.restore(state).is_err());
        let mut state = fixture.function.state();
        state.config.push(0);
        assert!(fixture.function.restore(state).is_err());
    }
}
