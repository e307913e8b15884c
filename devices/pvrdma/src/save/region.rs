//! The driver shared region as it is saved.

use device_model::ram::GuestRam;
use device_model::save::RestoreError;
use pvrdma_spec::command::{REQUEST_SIZE, RESPONSE_SIZE};
use pvrdma_spec::event::{Cqne, Eqe};
use pvrdma_spec::version;
use serde::{Deserialize, Serialize};

use super::invalid;
use crate::ring::{ProducerRing, ProducerRingState, RingPages};
use crate::state::{Phase, Region, ring_shape};

/// What the driver said in its shared region, and how far the device's rings have come.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct RegionState {
    driver_version: u32,
    command_slot: u64,
    response_slot: u64,
    uar_base: u64,
    events: ProducerRingState,
    notifications: ProducerRingState,
}

/// How far the driver has brought the device up.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum PhaseState {
    NoRegion,
    Loaded(RegionState),
    Active(RegionState),
}

impl PhaseState {
    pub(super) fn of(phase: &Phase) -> Self {
        match phase {
            Phase::NoRegion => Self::NoRegion,
            Phase::Loaded(region) => Self::Loaded(RegionState::of(region)),
            Phase::Active(region) => Self::Active(RegionState::of(region)),
        }
    }

    pub(super) fn restore(self, ram: &dyn GuestRam) -> Result<Phase, RestoreError> {
        Ok(match self {
            Self::NoRegion => Phase::NoRegion,
            Self::Loaded(region) => Phase::Loaded(region.restore(ram)?),
            Self::Active(region) => Phase::Active(region.restore(ram)?),
        })
    }
}

impl RegionState {
    fn of(region: &Region) -> Self {
        let Region { driver_version, command_slot, response_slot, uar_base, events, notifications } = region;
        Self {
            driver_version: *driver_version,
            command_slot: *command_slot,
            response_slot: *response_slot,
            uar_base: *uar_base,
            events: events.state(),
            notifications: notifications.state(),
        }
    }

    fn restore(self, ram: &dyn GuestRam) -> Result<Region, RestoreError> {
        if self.driver_version < version::ROCE_V1
            || ram.slice(self.command_slot, REQUEST_SIZE).is_err()
            || ram.slice(self.response_slot, RESPONSE_SIZE).is_err()
        {
            return Err(invalid("shared region"));
        }
        Ok(Region {
            driver_version: self.driver_version,
            command_slot: self.command_slot,
            response_slot: self.response_slot,
            uar_base: self.uar_base,
            events: device_ring::<Eqe>(self.events)?,
            notifications: device_ring::<Cqne>(self.notifications)?,
        })
    }
}

fn device_ring<T>(state: ProducerRingState) -> Result<ProducerRing, RestoreError> {
    let bad = || invalid("device ring");
    let pages = u32::try_from(state.pages.len()).map_err(|_| bad())?;
    let (indices, stride) = ring_shape::<T>(pages).map_err(|_| bad())?;
    let pages = RingPages::from_numbers(state.pages).ok_or_else(bad)?;
    let mut ring = ProducerRing::new(pages, indices, stride);
    if ring.restore(state.tail, state.produced) { Ok(ring) } else { Err(bad()) }
}
