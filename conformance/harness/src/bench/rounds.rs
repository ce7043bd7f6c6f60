//! Several rounds of the same loads: a machine that is slower for a minute is slower for whoever runs in that minute. Each figure
//! is the median of its rounds.

use std::collections::BTreeMap;

use super::{Figures, Measured, Results, measure::Cost, pods::OfNode};

/// The middle one; of an even number the mean of the middle two. 0 of none.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let at = |index: usize| values.get(index).copied().unwrap_or_default();
    if values.len().is_multiple_of(2) {
        (at(middle.saturating_sub(1)) + at(middle)) / 2.0
    } else {
        at(middle)
    }
}

/// Medians by name; what a round does not have is 0 there.
fn by_name(maps: &[&BTreeMap<String, f64>]) -> BTreeMap<String, f64> {
    let names = maps.iter().flat_map(|map| map.keys());
    let of =
        |name: &String| median(maps.iter().map(|map| map.get(name).copied().unwrap_or_default()).collect());
    names.map(|name| (name.clone(), of(name))).collect()
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "bytes of memory"
)]
fn bytes(values: impl Iterator<Item = u64>) -> u64 {
    median(values.map(|bytes| bytes as f64).collect()).round() as u64
}

fn cost(rounds: &[&Cost]) -> Cost {
    let of = |field: fn(&Cost) -> f64| median(rounds.iter().map(|cost| field(cost)).collect());
    let maps = |field: fn(&Cost) -> &BTreeMap<String, f64>| {
        by_name(&rounds.iter().map(|cost| field(cost)).collect::<Vec<_>>())
    };
    let processes = rounds.iter().flat_map(|cost| cost.memory.keys());
    Cost {
        cpu: maps(|cost| &cost.cpu),
        memory: processes
            .map(|name| {
                (name.clone(), bytes(rounds.iter().filter_map(|cost| cost.memory.get(name).copied())))
            })
            .collect(),
        writes: of(|cost| cost.writes),
        requests: maps(|cost| &cost.requests),
        events: of(|cost| cost.events),
        watches: of(|cost| cost.watches),
    }
}

fn load(first: &Measured, rounds: &[&Figures]) -> Measured {
    let same: Vec<&Measured> = rounds.iter().filter_map(|round| round.of(first.flow)).collect();
    let of = |field: fn(&Measured) -> f64| median(same.iter().map(|measured| field(measured)).collect());
    Measured {
        flow: first.flow,
        objects: first.objects,
        seconds: of(|measured| measured.seconds),
        per_second: of(|measured| measured.per_second),
        p50: of(|measured| measured.p50),
        p99: of(|measured| measured.p99),
        cost: cost(&same.iter().map(|measured| &measured.cost).collect::<Vec<_>>()),
    }
}

fn stacks(rounds: &[&[Figures]]) -> Vec<Figures> {
    let first = rounds.first().copied().unwrap_or_default();
    let stack = |figures: &Figures| {
        let same = rounds.iter().filter_map(|round| round.iter().find(|other| other.name == figures.name));
        let same: Vec<&Figures> = same.collect();
        let loads = figures.loads.iter().map(|first| load(first, &same)).collect();
        Figures { loads, ..figures.clone() }
    };
    first.iter().map(stack).collect()
}

fn node(rounds: &[&OfNode]) -> Option<OfNode> {
    rounds.first().map(|first| OfNode {
        memory: bytes(rounds.iter().map(|node| node.memory)),
        publish_p50: median(rounds.iter().map(|node| node.publish_p50).collect()),
        publishes: first.publishes,
    })
}

/// Each figure's median.
pub(super) fn medians(rounds: &[Results]) -> Results {
    let of = |field: fn(&Results) -> &[Figures]| stacks(&rounds.iter().map(field).collect::<Vec<_>>());
    Results {
        claims: of(|results| &results.claims),
        attachments: of(|results| &results.attachments),
        growth: of(|results| &results.growth),
        placed: of(|results| &results.placed),
        pods: of(|results| &results.pods),
        held: None,
        node: node(&rounds.iter().filter_map(|results| results.node.as_ref()).collect::<Vec<_>>()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_counts() {
        for (values, expected) in
            [(vec![], 0.0), (vec![3.0], 3.0), (vec![9.0, 1.0], 5.0), (vec![100.0, 1.0, 2.0], 2.0)]
        {
            assert!((median(values.clone()) - expected).abs() < f64::EPSILON, "{values:?}");
        }
        let maps =
            [("a", 1.0), ("b", 2.0), ("a", 3.0)].map(|(name, value)| [(name.to_owned(), value)].into());
        let found = by_name(&maps.iter().collect::<Vec<_>>());
        assert_eq!(found, [("a".to_owned(), 1.0), ("b".to_owned(), 0.0)].into());
        assert_eq!(bytes([7_u64, 1, 9].into_iter()), 7);
    }
}
