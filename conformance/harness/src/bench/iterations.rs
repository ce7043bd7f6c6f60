//! Medians of several iterations. A machine may be slower for some minutes, which affects a single iteration.

use std::collections::BTreeMap;

use super::results::{
    BenchmarkResults, ConfigurationResults, Cost, FarApi, FullCluster, Lifecycle, LoadMeasurement,
    NodeRoleUsage, Recovery, ScaleResults,
};

/// Describes the origin of the values that [`medians`] returns.
pub(super) fn iterations_text(iterations: usize) -> String {
    match iterations {
        1 => "One iteration".to_owned(),
        iterations => {
            format!("Medians of {iterations} iterations, each of which measures every configuration")
        }
    }
}

/// The median, or 0 if there are no values.
pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let at = |index: usize| values.get(index).copied().unwrap_or_default();
    if values.len().is_multiple_of(2) {
        (at(middle.saturating_sub(1)) + at(middle)) / 2.0
    } else {
        at(middle)
    }
}

/// Medians of the values with the same name, which is that of a process or request. A value that an iteration
/// does not have counts as 0.
fn medians_by_name(maps: &[&BTreeMap<String, f64>]) -> BTreeMap<String, f64> {
    let names = maps.iter().flat_map(|map| map.keys());
    let median_of =
        |name: &String| median(maps.iter().map(|map| map.get(name).copied().unwrap_or_default()).collect());
    names.map(|name| (name.clone(), median_of(name))).collect()
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "bytes of memory"
)]
fn median_bytes(values: impl Iterator<Item = u64>) -> u64 {
    median(values.map(|bytes| bytes as f64).collect()).round() as u64
}

fn median_cost(iterations: &[&Cost]) -> Cost {
    let median_of = |field: fn(&Cost) -> f64| median(iterations.iter().map(|cost| field(cost)).collect());
    let maps = |field: fn(&Cost) -> &BTreeMap<String, f64>| {
        medians_by_name(&iterations.iter().map(|cost| field(cost)).collect::<Vec<_>>())
    };
    let processes = iterations.iter().flat_map(|cost| cost.memory.keys());
    Cost {
        cpu: maps(|cost| &cost.cpu),
        memory: processes
            .map(|name| {
                (
                    name.clone(),
                    median_bytes(iterations.iter().filter_map(|cost| cost.memory.get(name).copied())),
                )
            })
            .collect(),
        writes: median_of(|cost| cost.writes),
        requests: maps(|cost| &cost.requests),
        events: median_of(|cost| cost.events),
        watches: median_of(|cost| cost.watches),
    }
}

fn median_load(first: &LoadMeasurement, iterations: &[&ConfigurationResults]) -> LoadMeasurement {
    let same: Vec<&LoadMeasurement> = iterations.iter().filter_map(|round| round.load(first.kind)).collect();
    let median_of = |field: fn(&LoadMeasurement) -> f64| {
        median(same.iter().map(|measurement| field(measurement)).collect())
    };
    LoadMeasurement {
        kind: first.kind,
        objects: first.objects,
        seconds: median_of(|measurement| measurement.seconds),
        per_second: median_of(|measurement| measurement.per_second),
        p50: median_of(|measurement| measurement.p50),
        p99: median_of(|measurement| measurement.p99),
        cost: median_cost(&same.iter().map(|measurement| &measurement.cost).collect::<Vec<_>>()),
    }
}

/// The medians of configurations, which are matched by their names.
pub(super) fn median_configurations(iterations: &[&[ConfigurationResults]]) -> Vec<ConfigurationResults> {
    let first = iterations.first().copied().unwrap_or_default();
    let stack = |results: &ConfigurationResults| {
        let same =
            iterations.iter().filter_map(|round| round.iter().find(|other| other.name == results.name));
        let same: Vec<&ConfigurationResults> = same.collect();
        median_results(results, &same)
    };
    first.iter().map(stack).collect()
}

fn median_node(iterations: &[&NodeRoleUsage]) -> Option<NodeRoleUsage> {
    iterations.first().map(|first| NodeRoleUsage {
        resident_bytes: median_bytes(iterations.iter().map(|node| node.resident_bytes)),
        publish_p50: median(iterations.iter().map(|node| node.publish_p50).collect()),
        publishes: first.publishes,
    })
}

fn median_results(results: &ConfigurationResults, same: &[&ConfigurationResults]) -> ConfigurationResults {
    let loads = results.loads.iter().map(|first| median_load(first, same)).collect();
    ConfigurationResults { loads, ..results.clone() }
}

fn median_lifecycle(iterations: &[&Lifecycle]) -> Option<Lifecycle> {
    let median_of =
        |field: fn(&Lifecycle) -> f64| median(iterations.iter().map(|lifecycle| field(lifecycle)).collect());
    (!iterations.is_empty()).then(|| Lifecycle {
        start_seconds: median_of(|lifecycle| lifecycle.start_seconds),
        rest_cpu_seconds: median_of(|lifecycle| lifecycle.rest_cpu_seconds),
        relist: Recovery {
            seconds: median_of(|lifecycle| lifecycle.relist.seconds),
            cpu_seconds: median_of(|lifecycle| lifecycle.relist.cpu_seconds),
        },
        restart: Recovery {
            seconds: median_of(|lifecycle| lifecycle.restart.seconds),
            cpu_seconds: median_of(|lifecycle| lifecycle.restart.cpu_seconds),
        },
    })
}

/// As [`medians`], of the loads `full` and `far`.
pub(super) fn scale_medians(iterations: &[ScaleResults]) -> ScaleResults {
    let Some(first) = iterations.first() else { return ScaleResults::default() };
    let full = |first: &FullCluster| {
        let same: Vec<&FullCluster> = iterations
            .iter()
            .flat_map(|iteration| &iteration.full)
            .filter(|other| other.volumes == first.volumes && other.results.name == first.results.name)
            .collect();
        let results: Vec<_> = same.iter().map(|cluster| &cluster.results).collect();
        let lifecycles: Vec<_> = same.iter().filter_map(|cluster| cluster.lifecycle.as_ref()).collect();
        FullCluster {
            volumes: first.volumes,
            results: median_results(&first.results, &results),
            lifecycle: median_lifecycle(&lifecycles),
        }
    };
    let far = |first: &FarApi| {
        let is_same = |other: &&FarApi| {
            other.round_trip_ms == first.round_trip_ms && other.results.name == first.results.name
        };
        let same = iterations.iter().flat_map(|iteration| &iteration.far).filter(is_same);
        let results: Vec<_> = same.map(|api| &api.results).collect();
        FarApi { round_trip_ms: first.round_trip_ms, results: median_results(&first.results, &results) }
    };
    ScaleResults { full: first.full.iter().map(full).collect(), far: first.far.iter().map(far).collect() }
}

/// The median of every measured value. Names, descriptions and numbers of objects and calls are those of the
/// first iteration. Idle memory is left out: it is measured once.
pub(super) fn medians(iterations: &[BenchmarkResults]) -> BenchmarkResults {
    let median_of = |field: fn(&BenchmarkResults) -> &[ConfigurationResults]| {
        median_configurations(&iterations.iter().map(field).collect::<Vec<_>>())
    };
    BenchmarkResults {
        claims: median_of(|results| &results.claims),
        attachments: median_of(|results| &results.attachments),
        expansion: median_of(|results| &results.expansion),
        snapshots: median_of(|results| &results.snapshots),
        scheduling: median_of(|results| &results.scheduling),
        pods: median_of(|results| &results.pods),
        memory: None,
        existing_snapshots: None,
        node: median_node(&iterations.iter().filter_map(|results| results.node.as_ref()).collect::<Vec<_>>()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_empty_odd_and_even_lists() {
        for (values, expected) in
            [(vec![], 0.0), (vec![3.0], 3.0), (vec![9.0, 1.0], 5.0), (vec![100.0, 1.0, 2.0], 2.0)]
        {
            assert!((median(values.clone()) - expected).abs() < f64::EPSILON, "{values:?}");
        }
        let maps =
            [("a", 1.0), ("b", 2.0), ("a", 3.0)].map(|(name, value)| [(name.to_owned(), value)].into());
        let found = medians_by_name(&maps.iter().collect::<Vec<_>>());
        assert_eq!(found, [("a".to_owned(), 1.0), ("b".to_owned(), 0.0)].into());
        assert_eq!(median_bytes([7_u64, 1, 9].into_iter()), 7);
    }

    #[test]
    fn scale_medians_are_of_the_same_cluster_and_configuration() {
        let cluster = |volumes, name: &str, start_seconds| FullCluster {
            volumes,
            results: ConfigurationResults {
                name: name.to_owned(),
                description: String::new(),
                implementation: None,
                controllers: Vec::new(),
                loads: Vec::new(),
            },
            lifecycle: Some(Lifecycle {
                start_seconds,
                rest_cpu_seconds: 0.0,
                relist: Recovery { seconds: start_seconds, cpu_seconds: 1.0 },
                restart: Recovery { seconds: 0.0, cpu_seconds: 0.0 },
            }),
        };
        let iterations = [1.0, 9.0, 2.0].map(|seconds| ScaleResults {
            full: vec![cluster(0, "one", seconds), cluster(5, "one", 50.0), cluster(0, "two", 70.0)],
            far: Vec::new(),
        });
        let medians = scale_medians(&iterations).full;
        let starts: Vec<_> = medians
            .iter()
            .filter_map(|cluster| {
                let lifecycle = cluster.lifecycle.as_ref()?;
                Some((cluster.volumes, lifecycle.start_seconds, lifecycle.relist.seconds))
            })
            .collect();
        assert_eq!(starts, [(0, 2.0, 2.0), (5, 50.0, 50.0), (0, 70.0, 70.0)]);
    }
}
