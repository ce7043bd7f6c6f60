//! Topology of volumes.

use cofferdam_backend::Backend as _;
use cofferdam_domain::storage::{CreateVolume, ErrorKind, TopologyRequirement};

use super::case;
use crate::{
    CaseRequirement::{NoTopology, Topology},
    ConformanceCase,
    check::{CaseResult, expect_final_error, expect_success, expect_that, skip},
    context::SuiteContext,
};

pub(super) const CASES: &[ConformanceCase] = &[
    case!(
        "topology/is-met",
        "A volume is accessible from the requested topology segment.",
        "wit types.topology-requirement; CSI CreateVolume",
        [Topology],
        topology_is_met
    ),
    case!(
        "topology/known-keys",
        "The topology of a volume has only keys of the driver's description.",
        "wit identity.description; CSI Topology",
        [Topology],
        known_keys
    ),
    case!(
        "topology/unknown-segment",
        "A volume for an unknown topology segment fails with resource-exhausted or invalid-argument.",
        "wit types.topology-requirement; CSI CreateVolume",
        [Topology],
        unknown_topology
    ),
    case!(
        "topology/none",
        "Volumes of a driver without topology keys have no topology.",
        "wit types.volume; CSI Topology",
        [NoTopology],
        no_topology
    ),
];

async fn topology_is_met(context: &SuiteContext) -> CaseResult {
    let (request, volume) = context.new_volume("placed").await?;
    let requested: Vec<_> = request.topology.iter().flat_map(|topology| &topology.requisite).collect();
    let is_met = volume.topology.iter().any(|found| {
        requested.iter().any(|wanted| wanted.iter().all(|(key, value)| found.get(key) == Some(value)))
    });
    expect_that(
        is_met,
        || format!("a volume that can be reached from {requested:?}"),
        || format!("{:?}", volume.topology),
    )
}

async fn known_keys(context: &SuiteContext) -> CaseResult {
    let (_, volume) = context.new_volume("keyed").await?;
    let known = &context.backend.description().topology_keys;
    let unknown_key = volume.topology.iter().flatten().find(|(key, _)| !known.contains(key));
    let expected = || format!("keys of {known:?}");
    expect_that(unknown_key.is_none(), expected, || format!("{:?}", volume.topology))
}

async fn unknown_topology(context: &SuiteContext) -> CaseResult {
    let request = context.volume_request("nowhere");
    let Some(mut segments) = context.options.topology.clone() else {
        return skip("the run has no topology segment");
    };
    for value in segments.values_mut() {
        "cofferdam-test-nowhere".clone_into(value);
    }
    let topology = Some(TopologyRequirement { requisite: vec![segments.clone()], preferred: vec![segments] });
    let answer = context.create(&CreateVolume { topology, ..request }).await;
    let kinds = [ErrorKind::ResourceExhausted, ErrorKind::InvalidArgument];
    expect_final_error("a volume for an unknown topology segment", &answer, &kinds)
}

async fn no_topology(context: &SuiteContext) -> CaseResult {
    let request = CreateVolume { topology: None, ..context.volume_request("anywhere") };
    let volume = expect_success("a new volume", context.create(&request).await)?;
    expect_that(volume.topology.is_empty(), || "no topology".to_owned(), || format!("{:?}", volume.topology))
}
