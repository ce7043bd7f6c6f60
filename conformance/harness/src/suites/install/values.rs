//! The cases of values in `deploy/helm/cases.yaml`: what Helm renders for them, or its error.

use std::{collections::BTreeMap, fs};

use anyhow::{Context as _, Result, bail, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde::Deserialize;
use serde_json::{Value, json};

use super::helm::{Helm, HelmVersion, source_directory, write_values};
use crate::{process, run::SuiteRun};

/// Maximum concurrent processes of Helm. Each needs a CPU.
const CONCURRENT_RENDERINGS: usize = 2;

/// One case.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ValuesCase {
    name: String,
    /// File of `deploy/helm/values` below the values, or `none`.
    #[serde(default = "default_base")]
    base: String,
    #[serde(default)]
    values: Value,
    #[serde(default)]
    args: Vec<String>,
    /// Text of Helm's error; `None` if Helm renders the chart.
    error: Option<String>,
    #[serde(default)]
    objects: Vec<ExpectedObject>,
}

/// A rendered object, or a value of it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExpectedObject {
    kind: String,
    name: String,
    /// JSON pointer.
    path: Option<String>,
    value: Option<Value>,
    /// True if the object, or the value at the path, is absent.
    #[serde(default)]
    absent: bool,
}

fn default_base() -> String {
    "component".to_owned()
}

/// An account that the chart renders for a file of values, and the flags with which `cofferdam render rbac`
/// prints the same rights.
const RIGHTS: [(&str, &str, &[&str]); 3] = [
    ("component", "my-array-cofferdam-controller", &CENTRAL_FLAGS),
    ("csi-driver", "my-array-cofferdam-controller", &CENTRAL_FLAGS),
    (
        "pool",
        "my-array-cofferdam-node",
        &[
            "--role=provisioner",
            "--role=resizer",
            "--role=node",
            "--drivers=node",
            "--namespace=storage-node",
        ],
    ),
];
const CENTRAL_FLAGS: [&str; 4] =
    ["--role=provisioner", "--role=attacher", "--role=resizer", "--namespace=storage"];

/// Compares the rights of an account in the chart with those of `cofferdam render rbac`.
async fn check_rights(run: &SuiteRun, base: &str, account: &str, flags: &[&str]) -> Result<()> {
    let helm = Helm::without_cluster(run, HelmVersion::Three)?;
    let values = base_file(base);
    let chart =
        helm.run(&["template", "my-array", "CHART", "--namespace", "storage", "--values", &values]).await?;
    let account_flag = format!("--service-account={account}");
    let render = [&["render", "rbac", &account_flag], flags].concat();
    let rendered = process::run_to_completion(run.program(), &render).await?;
    let (chart, rendered) = (rights(&chart, account)?, rights(&rendered, account)?);
    ensure!(!rendered.is_empty() && chart == rendered, "the chart has {chart:?}: expected {rendered:?}");
    Ok(())
}

/// The rules and bindings of an account, by kind, namespace and name of their object.
fn rights(text: &str, account: &str) -> Result<BTreeMap<String, Value>> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text)?;
    let mut rights = BTreeMap::new();
    for mut object in documents {
        let kind = object.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
        let metadata = object.get("metadata").cloned().unwrap_or_default();
        let name = metadata.get("name").and_then(Value::as_str).unwrap_or_default();
        let is_of_account = name == account || name.ends_with(&format!(":{account}"));
        if !is_of_account
            || !["Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"].contains(&kind.as_str())
        {
            continue;
        }
        let namespace = metadata.get("namespace").and_then(Value::as_str).unwrap_or_default();
        let key = format!("{kind} {namespace}/{name}");
        if let Some(rules) = object.get_mut("rules").and_then(Value::as_array_mut) {
            rules.sort_by_key(ToString::to_string);
        }
        let parts =
            ["rules", "roleRef", "subjects"].map(|part| object.get(part).cloned().unwrap_or_default());
        rights.insert(key, Value::from(parts.to_vec()));
    }
    Ok(rights)
}

/// Cases with the same values, and what Helm renders for all of them.
struct Rendering<'a> {
    /// The arguments of Helm.
    arguments: Vec<String>,
    cases: Vec<&'a ValuesCase>,
}

impl Rendering<'_> {
    /// Runs Helm, and compares its output or error with every case. Returns the rendered objects.
    async fn check(&self, helm: &Helm, version: HelmVersion) -> Result<Vec<Value>> {
        let arguments: Vec<&str> = self.arguments.iter().map(String::as_str).collect();
        let output = helm.run(&arguments).await.map_err(|error| format!("{error:#}"));
        let objects = match &output {
            Ok(text) => serde_saphyr::from_multiple(text)?,
            Err(_) => Vec::new(),
        };
        for case in &self.cases {
            let result = output.as_ref().map(|_| objects.as_slice()).map_err(String::as_str);
            check_case(case, result)
                .with_context(|| format!("{}: case {:?}", version.program(), case.name))?;
        }
        Ok(objects)
    }
}

/// The renderings of all cases. Writes their values to files of the run.
fn renderings<'a>(run: &SuiteRun, cases: &'a [ValuesCase]) -> Result<Vec<Rendering<'a>>> {
    let mut by_input: BTreeMap<(&str, String, &[String]), Vec<&ValuesCase>> = BTreeMap::new();
    for case in cases {
        let values = if case.values.is_null() { json!({}) } else { case.values.clone() };
        by_input.entry((&case.base, values.to_string(), &case.args)).or_default().push(case);
    }
    let mut renderings = Vec::new();
    for (number, ((base, values, args), cases)) in by_input.into_iter().enumerate() {
        let file = write_values(run, &format!("case-{number}"), &serde_json::from_str(&values)?)?;
        let mut arguments =
            ["template", "my-array", "CHART", "--namespace", "storage"].map(str::to_owned).to_vec();
        if base != "none" {
            arguments.extend(["--values".to_owned(), base_file(base)]);
        }
        arguments.extend(["--values".to_owned(), file]);
        arguments.extend(args.iter().cloned());
        renderings.push(Rendering { arguments, cases });
    }
    Ok(renderings)
}

/// Renders every case with every version of Helm. Returns the objects that Helm 3 renders for all cases.
///
/// # Errors
/// With the name of a case that does not give what it expects.
pub(super) async fn check(run: &SuiteRun) -> Result<Vec<Value>> {
    let directory = source_directory().join("deploy/helm");
    let text = fs::read_to_string(directory.join("cases.yaml"))?;
    let cases: Vec<ValuesCase> = serde_saphyr::from_str(&text).context("cases.yaml")?;
    let renderings = &renderings(run, &cases)?;
    let mut rendered = Vec::new();
    for version in HelmVersion::ALL {
        let helm = &Helm::without_cluster(run, version)?;
        helm.run(&["lint", "--strict", "CHART", "--values", &base_file("component")])
            .await
            .with_context(|| format!("{} lint", version.program()))?;
        let objects: Vec<Vec<Value>> = stream::iter(renderings)
            .map(|rendering| rendering.check(helm, version))
            .buffer_unordered(CONCURRENT_RENDERINGS)
            .try_collect()
            .await?;
        if version == HelmVersion::Three {
            rendered = objects.into_iter().flatten().filter(|object| !object.is_null()).collect();
        }
    }
    for (base, account, flags) in RIGHTS {
        check_rights(run, base, account, flags)
            .await
            .with_context(|| format!("rights of {account} in {base}"))?;
    }
    run.add_note(&format!("{} cases of values with helm 3 and helm 4", cases.len()))?;
    Ok(rendered)
}

fn base_file(name: &str) -> String {
    source_directory().join(format!("deploy/helm/values/{name}.yaml")).display().to_string()
}

/// Compares the rendered objects, or the error of Helm, with a case.
fn check_case(case: &ValuesCase, result: Result<&[Value], &str>) -> Result<()> {
    match (result, &case.error) {
        (Err(error), Some(expected)) => {
            ensure!(error.contains(expected.as_str()), "error {error:?}: expected {expected:?}");
            Ok(())
        }
        (Ok(_), Some(expected)) => bail!("rendered: expected the error {expected:?}"),
        (Err(error), None) => bail!("{error}"),
        (Ok(objects), None) => check_objects(objects, &case.objects),
    }
}

fn check_objects(documents: &[Value], expected: &[ExpectedObject]) -> Result<()> {
    let text_at = |object: &Value, path: &str| {
        object.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let objects: BTreeMap<(String, String), &Value> = documents
        .iter()
        .filter(|object| !object.is_null())
        .map(|object| ((text_at(object, "/kind"), text_at(object, "/metadata/name")), object))
        .collect();
    ensure!(!objects.is_empty(), "no objects");
    for ExpectedObject { kind, name, path, value, absent } in expected {
        let object = objects.get(&(kind.clone(), name.clone()));
        let found = match path {
            None => object.copied(),
            Some(path) => object.with_context(|| format!("no {kind} {name}"))?.pointer(path),
        };
        let place = format!("{kind} {name}{}", path.as_deref().unwrap_or_default());
        match (found, value) {
            (None, _) if *absent => {}
            (Some(found), _) if *absent => bail!("{place} is {found}: expected none"),
            (None, _) => bail!("{place} is absent"),
            (Some(found), Some(value)) => ensure!(found == value, "{place} is {found}: expected {value}"),
            (Some(_), None) => {}
        }
    }
    Ok(())
}
