//! The common configuration structure (section 4.1.4.3) as a table of its fields.

/// A field, or the half of a 64-bit one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    DeviceFeatureSelect,
    DeviceFeature,
    DriverFeatureSelect,
    DriverFeature,
    ConfigMsixVector,
    NumQueues,
    DeviceStatus,
    ConfigGeneration,
    QueueSelect,
    QueueSize,
    QueueMsixVector,
    QueueEnable,
    QueueNotifyOff,
    QueueAddress(Part, Half),
}

/// A part of a split virtqueue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Descriptor table.
    Desc,
    /// Available ring.
    Driver,
    /// Used ring.
    Device,
}

/// Half of a 64-bit field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Half {
    Low,
    High,
}

impl Half {
    /// `value` with this half replaced.
    pub(crate) const fn replace(self, value: u64, half: u32) -> u64 {
        match self {
            Self::Low => value >> 32 << 32 | half as u64,
            Self::High => value << 32 >> 32 | (half as u64) << 32,
        }
    }

    /// This half of `value`.
    pub(crate) const fn of(self, value: u64) -> u32 {
        match self {
            Self::Low => (value & 0xffff_ffff) as u32,
            Self::High => (value >> 32) as u32,
        }
    }
}

/// Offset, width in bytes, field.
const FIELDS: [(u64, usize, Field); 19] = [
    (0x00, 4, Field::DeviceFeatureSelect),
    (0x04, 4, Field::DeviceFeature),
    (0x08, 4, Field::DriverFeatureSelect),
    (0x0c, 4, Field::DriverFeature),
    (0x10, 2, Field::ConfigMsixVector),
    (0x12, 2, Field::NumQueues),
    (0x14, 1, Field::DeviceStatus),
    (0x15, 1, Field::ConfigGeneration),
    (0x16, 2, Field::QueueSelect),
    (0x18, 2, Field::QueueSize),
    (0x1a, 2, Field::QueueMsixVector),
    (0x1c, 2, Field::QueueEnable),
    (0x1e, 2, Field::QueueNotifyOff),
    (0x20, 4, Field::QueueAddress(Part::Desc, Half::Low)),
    (0x24, 4, Field::QueueAddress(Part::Desc, Half::High)),
    (0x28, 4, Field::QueueAddress(Part::Driver, Half::Low)),
    (0x2c, 4, Field::QueueAddress(Part::Driver, Half::High)),
    (0x30, 4, Field::QueueAddress(Part::Device, Half::Low)),
    (0x34, 4, Field::QueueAddress(Part::Device, Half::High)),
];

/// The field that an access means. Drivers must use the width of the field; anything else is nothing.
pub(crate) fn field(offset: u64, width: usize) -> Option<Field> {
    FIELDS.iter().find(|(at, bytes, _)| (*at, *bytes) == (offset, width)).map(|(_, _, field)| *field)
}
