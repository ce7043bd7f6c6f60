//! Where volumes can be reached.

use cofferdam_backend::Backend as _;
use cofferdam_domain::storage::{CreateVolume, ErrorKind, TopologyRequirement};

use super::case;
use crate::{
    Case,
    Need::{NoTopology, Topology},
    bench::Bench,
    check::{Checked, done, holds, refused, skipped},
};

pub(super) const CASES: &[Case] = &[
    case!(
        "topology/is-met",
        "A volume can be reached from the place that was asked for.",
        "wit types.topology-requirement; CSI CreateVolume",
        [Topology],
        is_met
    ),
    case!(
        "topology/known-keys",
        "A volume's places have only keys that the driver names.",
        "wit identity.description; CSI Topology",
        [Topology],
        known_keys
    ),
    case!(
        "topology/nowhere",
        "A volume for a place that does not exist is resource-exhausted, or invalid-argument.",
        "wit types.topology-requirement; CSI CreateVolume",
        [Topology],
        nowhere
    ),
    case!(
        "topology/none",
        "Volumes of a driver that names no topology keys have no places.",
        "wit types.volume; CSI Topology",
        [NoTopology],
        none
    ),
];

async fn is_met(bench: &Bench) -> Checked {
    let (request, volume) = bench.volume("placed").await?;
    let places: Vec<_> = request.topology.iter().flat_map(|topology| &topology.requisite).collect();
    let met = volume.topology.iter().any(|found| {
        places.iter().any(|wanted| wanted.iter().all(|(key, value)| found.get(key) == Some(value)))
    });
    holds(
        met,
        || format!("a volume that can be reached from {places:?}"),
        || format!("{:?}", volume.topology),
    )
}

async fn known_keys(bench: &Bench) -> Checked {
    let (_, volume) = bench.volume("keyed").await?;
    let known = &bench.backend.description().topology_keys;
    let stranger = volume.topology.iter().flatten().find(|(key, _)| !known.contains(key));
    let expected = || format!("keys of {known:?}");
    holds(stranger.is_none(), expected, || format!("{:?}", volume.topology))
}

async fn nowhere(bench: &Bench) -> Checked {
    let request = bench.request("nowhere");
    let Some(mut place) = bench.options.topology.clone() else {
        return skipped("the run was given no place");
    };
    for value in place.values_mut() {
        "cofferdam-test-nowhere".clone_into(value);
    }
    let topology = Some(TopologyRequirement { requisite: vec![place.clone()], preferred: vec![place] });
    let answer = bench.create(&CreateVolume { topology, ..request }).await;
    let kinds = [ErrorKind::ResourceExhausted, ErrorKind::InvalidArgument];
    refused("a volume for a place that does not exist", &answer, &kinds)
}

async fn none(bench: &Bench) -> Checked {
    let request = CreateVolume { topology: None, ..bench.request("anywhere") };
    let volume = done("a new volume", bench.create(&request).await)?;
    holds(volume.topology.is_empty(), || "no places".to_owned(), || format!("{:?}", volume.topology))
}
