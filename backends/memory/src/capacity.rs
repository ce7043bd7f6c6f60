//! Room for more volumes.

use cofferdam_guest::{
    Result,
    abilities::{CapacityReport, CapacityRequest},
    state::Store,
};

use crate::{
    records::{Books, Call, Ledger},
    request::{self, CONDITION, LABEL},
    settings::{MAX_TOTAL, Settings},
    topology::Place,
};

/// How much room there is: in the places of some segments, or in all.
pub(crate) fn available<S: Store>(call: &Call<'_, S>, request: &CapacityRequest) -> Result<CapacityReport> {
    request::parameters(&request.parameters, &[LABEL, CONDITION])?;
    if !request.capabilities.is_empty() {
        request::uses(&request.capabilities, call.settings)?;
    }
    let topology = &call.settings.topology;
    let places: Vec<Option<&Place>> = match &request.topology {
        Some(segments) => topology.within(segments)?.into_iter().map(Some).collect(),
        None if topology.keys.is_empty() => vec![None],
        None => topology.places.iter().map(Some).collect(),
    };
    let ledger = Books::read(call.store)?.ledger;
    let rooms = || places.iter().map(|place| room(call.settings, &ledger, *place));
    let largest = rooms().max().unwrap_or_default();
    let sum = rooms().fold(0, u64::saturating_add).min(MAX_TOTAL.saturating_sub(ledger.bytes));
    Ok(CapacityReport {
        available_bytes: if call.settings.is_whole() { largest } else { sum },
        maximum_volume_bytes: Some(largest.min(request::MAX_SIZE)),
        minimum_volume_bytes: (largest > 0).then_some(1),
    })
}

/// Bytes that a place has left.
fn room(settings: &Settings, ledger: &Ledger, place: Option<&Place>) -> u64 {
    let used = if settings.is_whole() { ledger.bytes } else { ledger.used(place) };
    let whole = MAX_TOTAL.saturating_sub(ledger.bytes);
    settings.limit(place).saturating_sub(used).min(whole)
}
