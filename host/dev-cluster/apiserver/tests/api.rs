//! Tests of the API with a kube-rs client, within one process.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on says so by panicking"
)]

mod common;

use common::{ApiFixture, claim, class, error_code, setup, volume};
use futures::{StreamExt, TryStreamExt, pin_mut};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt;
use kube::api::{
    Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy,
    WatchEvent, WatchParams,
};
use serde_json::{Value, json};

fn config_map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}, "data": {"a": "1"}})).unwrap()
}

fn post() -> PostParams {
    PostParams::default()
}

#[tokio::test]
async fn objects_can_be_created_read_replaced_and_deleted() {
    let ApiFixture { client, .. } = setup();
    let api: Api<ConfigMap> = Api::default_namespaced(client);
    let created = api.create(&post(), &config_map("one")).await.unwrap();
    assert!(created.uid().is_some());
    assert_eq!(created.namespace().as_deref(), Some("default"));
    assert_eq!(error_code(api.create(&post(), &config_map("one")).await), (409, "AlreadyExists".into()));

    let mut next = created.clone();
    next.data.as_mut().unwrap().insert("a".into(), "2".into());
    let replaced = api.replace("one", &post(), &next).await.unwrap();
    assert_ne!(replaced.resource_version(), created.resource_version());
    let same = api.replace("one", &post(), &replaced).await.unwrap();
    assert_eq!(same.resource_version(), replaced.resource_version(), "nothing changed");

    let error = api.replace("one", &post(), &next).await.unwrap_err();
    assert!(error.to_string().contains(
        "Operation cannot be fulfilled on configmaps \"one\": the object has been modified; please apply \
         your \
         changes to the latest version and try again"
    ));
    assert!(api.delete("one", &DeleteParams::default()).await.unwrap().is_right());
    assert_eq!(error_code(api.get("one").await), (404, "NotFound".into()));
    assert_eq!(error_code(api.delete("one", &DeleteParams::default()).await), (404, "NotFound".into()));
}

#[tokio::test]
async fn names_are_generated_and_uids_can_be_seeded() {
    let mut names = Vec::new();
    for _ in 0..2 {
        let api: Api<ConfigMap> = Api::default_namespaced(setup().client);
        let mut object = config_map("");
        object.metadata.name = None;
        object.metadata.generate_name = Some("x-".into());
        let created = api.create(&post(), &object).await.unwrap();
        assert_eq!(created.name_any().len(), 7);
        names.push((created.name_any(), created.uid()));
    }
    assert_eq!(names[0], names[1]);
}

#[tokio::test]
async fn a_dry_run_stores_nothing() {
    let ApiFixture { client, .. } = setup();
    let api: Api<ConfigMap> = Api::default_namespaced(client);
    let dry = PostParams { dry_run: true, ..post() };
    api.create(&dry, &config_map("one")).await.unwrap();
    assert_eq!(error_code(api.get("one").await).0, 404);
}

#[tokio::test]
async fn pages_of_a_selected_list_show_one_resource_version() {
    let ApiFixture { client, server } = setup();
    let api: Api<ConfigMap> = Api::default_namespaced(client);
    for index in 0..5 {
        let mut object = config_map(&format!("c{index}"));
        object.labels_mut().insert("odd".into(), (index % 2 == 1).to_string());
        api.create(&post(), &object).await.unwrap();
    }
    let odd = api.list(&ListParams::default().labels("odd in (true)")).await.unwrap();
    assert_eq!(odd.items.iter().map(ResourceExt::name_any).collect::<Vec<_>>(), ["c1", "c3"]);
    let one = api.list(&ListParams::default().fields("metadata.name=c2")).await.unwrap();
    assert_eq!(one.items.len(), 1);

    let first = api.list(&ListParams::default().limit(2)).await.unwrap();
    assert_eq!(first.metadata.remaining_item_count, Some(3));
    let token = first.metadata.continue_.clone().unwrap();
    // The second page does not show changes after the first.
    api.delete("c2", &DeleteParams::default()).await.unwrap();
    api.create(&post(), &config_map("c9")).await.unwrap();
    let page = ListParams::default().limit(10).continue_token(&token);
    let second = api.list(&page).await.unwrap();
    assert_eq!(second.items.iter().map(ResourceExt::name_any).collect::<Vec<_>>(), ["c2", "c3", "c4"]);
    assert_eq!(second.metadata.resource_version, first.metadata.resource_version);
    server.compact();
    assert_eq!(error_code(api.list(&page).await), (410, "Expired".into()));
    let future = ListParams::default().at("999999");
    assert_eq!(error_code(api.list(&future).await), (504, "Timeout".into()));
}

async fn next_event(
    stream: &mut (impl futures::Stream<Item = kube::Result<WatchEvent<ConfigMap>>> + Unpin),
) -> (&'static str, String) {
    match stream.next().await.unwrap().unwrap() {
        WatchEvent::Added(object) => ("ADDED", object.name_any()),
        WatchEvent::Modified(object) => ("MODIFIED", object.name_any()),
        WatchEvent::Deleted(object) => ("DELETED", object.name_any()),
        WatchEvent::Bookmark(mark) => ("BOOKMARK", mark.metadata.resource_version),
        WatchEvent::Error(status) => ("ERROR", status.code.to_string()),
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_reports_objects_entering_and_leaving_its_selector() {
    let ApiFixture { client, server } = setup();
    let api: Api<ConfigMap> = Api::default_namespaced(client);
    let start = api.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    let watch = api.watch(&WatchParams::default().labels("on=yes"), &start).await.unwrap();
    pin_mut!(watch);
    api.create(&post(), &config_map("a")).await.unwrap();
    let label = |value: Value| Patch::Merge(json!({"metadata": {"labels": {"on": value}}}));
    let params = PatchParams::default();
    api.patch("a", &params, &label(json!("yes"))).await.unwrap();
    assert_eq!(next_event(&mut watch).await, ("ADDED", "a".into()));
    api.patch("a", &params, &Patch::Merge(json!({"data": {"a": "5"}}))).await.unwrap();
    assert_eq!(next_event(&mut watch).await, ("MODIFIED", "a".into()));
    api.patch("a", &params, &label(Value::Null)).await.unwrap();
    assert_eq!(next_event(&mut watch).await, ("DELETED", "a".into()));
    let now = server.resource_version().to_string();
    assert_eq!(next_event(&mut watch).await, ("BOOKMARK", now), "a minute later");

    server.compact();
    let old = api.watch(&WatchParams::default(), &start).await.unwrap();
    pin_mut!(old);
    assert_eq!(next_event(&mut old).await, ("ERROR", "410".into()));
    assert!(old.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_watch_can_send_initial_events() {
    let ApiFixture { client, .. } = setup();
    let api: Api<ConfigMap> = Api::default_namespaced(client);
    api.create(&post(), &config_map("a")).await.unwrap();
    let watch = api.watch(&WatchParams::default().initial_events(), "0").await.unwrap();
    pin_mut!(watch);
    assert_eq!(next_event(&mut watch).await, ("ADDED", "a".into()));
    let WatchEvent::Bookmark(mark) = watch.next().await.unwrap().unwrap() else { panic!("no bookmark") };
    assert_eq!(mark.metadata.annotations["k8s.io/initial-events-end"], "true");
    api.delete("a", &DeleteParams::default()).await.unwrap();
    assert_eq!(next_event(&mut watch).await, ("DELETED", "a".into()));
}

#[tokio::test(start_paused = true)]
async fn a_restore_ends_watches_and_resets_the_resource_version() {
    let ApiFixture { client, server } = setup();
    let api: Api<ConfigMap> = Api::default_namespaced(client);
    api.create(&post(), &config_map("kept")).await.unwrap();
    let backup = server.snapshot();
    api.create(&post(), &config_map("lost")).await.unwrap();
    let watch = api.watch(&WatchParams::default(), "0").await.unwrap();
    pin_mut!(watch);
    assert_eq!(next_event(&mut watch).await.0, "ADDED");
    assert_eq!(next_event(&mut watch).await.0, "ADDED");
    server.restore(&backup);
    assert!(watch.next().await.is_none());
    let list = api.list(&ListParams::default()).await.unwrap();
    assert_eq!(list.items.len(), 1);
    assert!(list.items[0].name_any() == "kept");
}

#[tokio::test]
async fn an_object_is_deleted_when_its_last_finalizer_is_removed() {
    let ApiFixture { client, .. } = setup();
    let api: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let mut object = config_map("held");
    object.finalizers_mut().push("example.com/hold".into());
    let created = api.create(&post(), &object).await.unwrap();
    let wrong = DeleteParams {
        preconditions: Some(Preconditions { uid: Some("other".into()), resource_version: None }),
        ..DeleteParams::default()
    };
    assert_eq!(error_code(api.delete("held", &wrong).await), (409, "Conflict".into()));
    let held = api.delete("held", &DeleteParams::default()).await.unwrap().left().unwrap();
    assert!(held.metadata.deletion_timestamp.is_some());
    assert_eq!(held.uid(), created.uid());
    let again = api.delete("held", &DeleteParams::default()).await.unwrap().left().unwrap();
    assert_eq!(again.resource_version(), held.resource_version());
    let add = Patch::Merge(json!({"metadata": {"finalizers": ["example.com/hold", "example.com/more"]}}));
    assert_eq!(error_code(api.patch("held", &PatchParams::default(), &add).await), (422, "Invalid".into()));
    let remove = |wanted: &str| {
        let patch = json!([
            {"op": "test", "path": "/metadata/finalizers/0", "value": wanted},
            {"op": "remove", "path": "/metadata/finalizers/0"},
        ]);
        http::Request::patch("/api/v1/namespaces/default/configmaps/held")
            .header("content-type", "application/json-patch+json")
            .body(patch.to_string().into_bytes())
            .unwrap()
    };
    let failed = client.request::<ConfigMap>(remove("example.com/other")).await;
    assert_eq!(error_code(failed), (422, "Invalid".into()));
    let gone: ConfigMap = client.request(remove("example.com/hold")).await.unwrap();
    assert!(gone.finalizers().is_empty());
    assert_eq!(error_code(api.get("held").await).0, 404);
}

#[tokio::test]
async fn dependents_are_garbage_collected_with_their_owner() {
    for (policy, owner_stays, dependent_stays) in [
        (PropagationPolicy::Background, false, false),
        (PropagationPolicy::Foreground, false, false),
        (PropagationPolicy::Orphan, false, true),
    ] {
        let ApiFixture { client, .. } = setup();
        let api: Api<ConfigMap> = Api::default_namespaced(client);
        let owner = api.create(&post(), &config_map("owner")).await.unwrap();
        let mut dependent = config_map("dependent");
        let reference = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner.uid()});
        dependent.metadata.owner_references = Some(vec![serde_json::from_value(reference).unwrap()]);
        api.create(&post(), &dependent).await.unwrap();
        let params = DeleteParams { propagation_policy: Some(policy.clone()), ..DeleteParams::default() };
        api.delete("owner", &params).await.unwrap();
        assert_eq!(api.get_opt("owner").await.unwrap().is_some(), owner_stays, "{policy:?}");
        let left = api.get_opt("dependent").await.unwrap();
        assert_eq!(left.is_some(), dependent_stays, "{policy:?}");
        assert!(left.is_none_or(|left| left.owner_references().is_empty()), "{policy:?}");
    }
}

#[tokio::test]
async fn a_namespace_is_deleted_after_its_contents() {
    let ApiFixture { client, .. } = setup();
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let api: Api<ConfigMap> = Api::namespaced(client, "team");
    assert_eq!(error_code(api.create(&post(), &config_map("a")).await), (404, "NotFound".into()));
    let team = serde_json::from_value(json!({"metadata": {"name": "team"}})).unwrap();
    namespaces.create(&post(), &team).await.unwrap();
    let mut held = config_map("held");
    held.finalizers_mut().push("example.com/hold".into());
    api.create(&post(), &held).await.unwrap();
    api.create(&post(), &config_map("plain")).await.unwrap();
    namespaces.delete("team", &DeleteParams::default()).await.unwrap();
    assert_eq!(api.list(&ListParams::default()).await.unwrap().items.len(), 1);
    let terminating = namespaces.get("team").await.unwrap();
    assert_eq!(terminating.status.unwrap().phase.as_deref(), Some("Terminating"));
    let error = api.create(&post(), &config_map("late")).await.unwrap_err();
    assert!(error.to_string().contains(
        "configmaps \"late\" is forbidden: unable to create new content in namespace team because it is \
         being \
         terminated"
    ));
    let release = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    api.patch("held", &PatchParams::default(), &release).await.unwrap();
    assert!(namespaces.get_opt("team").await.unwrap().is_none());
}

#[tokio::test]
async fn status_and_spec_are_updated_by_separate_endpoints() {
    let ApiFixture { client, .. } = setup();
    let api: Api<PersistentVolume> = Api::all(client);
    let mut wanted = volume("pv");
    wanted.status = serde_json::from_value(json!({"phase": "Bound"})).unwrap();
    let created = api.create(&post(), &wanted).await.unwrap();
    let status = created.status.clone().unwrap();
    assert_eq!(status.phase.as_deref(), Some("Pending"));
    assert!(status.last_phase_transition_time.is_some());
    assert_eq!(created.finalizers(), ["kubernetes.io/pv-protection"]);
    let spec = created.spec.clone().unwrap();
    assert_eq!(spec.persistent_volume_reclaim_policy.as_deref(), Some("Retain"));
    assert_eq!(spec.volume_mode.as_deref(), Some("Filesystem"));

    let both = Patch::Merge(json!({
        "spec": {"persistentVolumeReclaimPolicy": "Delete"},
        "status": {"phase": "Available"},
    }));
    let params = PatchParams::default();
    let after = api.patch("pv", &params, &both).await.unwrap();
    assert_eq!(after.status.unwrap().phase.as_deref(), Some("Pending"));
    assert_eq!(after.spec.unwrap().persistent_volume_reclaim_policy.as_deref(), Some("Delete"));
    let both = Patch::Merge(json!({
        "spec": {"persistentVolumeReclaimPolicy": "Retain"},
        "status": {"phase": "Available"},
    }));
    let after = api.patch_status("pv", &params, &both).await.unwrap();
    assert_eq!(after.status.unwrap().phase.as_deref(), Some("Available"));
    assert_eq!(after.spec.unwrap().persistent_volume_reclaim_policy.as_deref(), Some("Delete"));
}

#[tokio::test]
async fn claims_get_the_default_class_and_their_finalizer() {
    let ApiFixture { client, .. } = setup();
    let classes: Api<StorageClass> = Api::all(client.clone());
    for name in ["b", "a", "other"] {
        let mut class = class(name);
        if name != "other" {
            class
                .annotations_mut()
                .insert("storageclass.kubernetes.io/is-default-class".into(), "true".into());
        }
        let created = classes.create(&post(), &class).await.unwrap();
        assert_eq!(created.reclaim_policy.as_deref(), Some("Delete"));
        assert_eq!(created.volume_binding_mode.as_deref(), Some("Immediate"));
    }
    let api: Api<PersistentVolumeClaim> = Api::default_namespaced(client);
    let created = api.create(&post(), &claim("one", None)).await.unwrap();
    assert_eq!(created.finalizers(), ["kubernetes.io/pvc-protection"]);
    assert_eq!(created.status.unwrap().phase.as_deref(), Some("Pending"));
    assert_eq!(created.spec.unwrap().storage_class_name.as_deref(), Some("a"));
    let static_claim = api.create(&post(), &claim("two", Some(""))).await.unwrap();
    assert_eq!(static_claim.spec.unwrap().storage_class_name.as_deref(), Some(""));
}

#[tokio::test]
async fn a_bound_claim_expands_only_if_its_class_allows_expansion() {
    let ApiFixture { client, .. } = setup();
    let classes: Api<StorageClass> = Api::all(client.clone());
    let api: Api<PersistentVolumeClaim> = Api::default_namespaced(client);
    classes.create(&post(), &class("fast")).await.unwrap();
    api.create(&post(), &claim("c", Some("fast"))).await.unwrap();
    let params = PatchParams::default();
    let resize = |size: &str| Patch::Merge(json!({"spec": {"resources": {"requests": {"storage": size}}}}));
    assert_eq!(error_code(api.patch("c", &params, &resize("2Gi")).await), (422, "Invalid".into()));
    let bound = Patch::Merge(json!({"status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}}));
    api.patch_status("c", &params, &bound).await.unwrap();
    let error = api.patch("c", &params, &resize("2Gi")).await.unwrap_err();
    assert!(error.to_string().contains("the storageclass that provisions the pvc must support resize"));
    classes.patch("fast", &params, &Patch::Merge(json!({"allowVolumeExpansion": true}))).await.unwrap();
    api.patch("c", &params, &resize("2Gi")).await.unwrap();
    api.patch("c", &params, &resize("1536Mi")).await.unwrap();
    let error = api.patch("c", &params, &resize("1Gi")).await.unwrap_err();
    assert!(error.to_string().contains("field can not be less than status.capacity"), "{error}");
    let class = Patch::Merge(json!({"spec": {"storageClassName": "slow"}}));
    let error = api.patch("c", &params, &class).await.unwrap_err();
    assert!(error.to_string().contains("spec: Forbidden: spec is immutable after creation"), "{error}");
    let name = Patch::Merge(json!({"spec": {"volumeName": "pv"}}));
    api.patch("c", &params, &name).await.unwrap();
    let name = Patch::Merge(json!({"spec": {"volumeName": "other"}}));
    assert_eq!(error_code(api.patch("c", &params, &name).await), (422, "Invalid".into()));
}

#[tokio::test]
async fn server_side_apply_creates_objects_and_forces_ownership() {
    let ApiFixture { server, client } = setup();
    let api: Api<ConfigMap> = Api::default_namespaced(client);
    let apply = async |manager: &str, force: bool, value: &str| {
        let params = PatchParams { force, ..PatchParams::apply(manager) };
        let config =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, "data": {"k": value}});
        api.patch("x", &params, &Patch::Apply(config)).await
    };
    let created = apply("one", false, "1").await.unwrap();
    let owners = |object: &ConfigMap| -> Vec<String> {
        object.managed_fields().iter().filter_map(|entry| entry.manager.clone()).collect()
    };
    assert_eq!(owners(&created), ["one"]);
    let version = server.resource_version();
    apply("one", false, "1").await.unwrap();
    assert_eq!(server.resource_version(), version, "nothing changed");
    assert_eq!(error_code(apply("two", false, "2").await), (409, "Conflict".into()));
    assert_eq!(owners(&apply("two", true, "2").await.unwrap()), ["two"]);
    assert_eq!(server.resource_version(), version + 1);
}

#[tokio::test]
async fn owner_references_survive_a_restore() {
    let ApiFixture { server, client } = setup();
    let api: Api<ConfigMap> = Api::default_namespaced(client);
    api.create(&PostParams { field_manager: Some("one".into()), ..post() }, &config_map("x")).await.unwrap();
    let snapshot = server.snapshot();
    let label = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}));
    api.patch("x", &PatchParams { field_manager: Some("two".into()), ..PatchParams::default() }, &label)
        .await
        .unwrap();
    assert_eq!(api.get("x").await.unwrap().managed_fields().len(), 2);
    server.restore(&snapshot);
    assert_eq!(api.get("x").await.unwrap().managed_fields().len(), 1);
}

#[tokio::test]
async fn a_collection_is_deleted_by_selector() {
    let ApiFixture { client, .. } = setup();
    let api: Api<ConfigMap> = Api::default_namespaced(client);
    for name in ["a", "b", "c"] {
        let mut object = config_map(name);
        object.labels_mut().insert("name".into(), name.into());
        api.create(&post(), &object).await.unwrap();
    }
    let listed = ListParams::default().labels("name!=b");
    api.delete_collection(&DeleteParams::default(), &listed).await.unwrap();
    let left = api.list(&ListParams::default()).await.unwrap();
    assert_eq!(left.items.iter().map(ResourceExt::name_any).collect::<Vec<_>>(), ["b"]);
}

#[tokio::test]
async fn kube_client_reads_discovery_and_version() {
    let ApiFixture { client, .. } = setup();
    assert_eq!(client.apiserver_version().await.unwrap().minor, "36");
    let core = client.list_core_api_resources("v1").await.unwrap();
    assert!(core.resources.iter().any(|found| found.name == "persistentvolumeclaims/status"));
    let groups = client.list_api_groups().await.unwrap();
    assert_eq!(groups.groups.len(), 3);
}

#[tokio::test]
async fn partial_object_metadata_can_be_listed_and_watched() {
    let ApiFixture { client, .. } = setup();
    let api: Api<PersistentVolume> = Api::all(client);
    api.create(&post(), &volume("pv")).await.unwrap();
    assert_eq!(api.get_metadata("pv").await.unwrap().name_any(), "pv");
    assert_eq!(api.list_metadata(&ListParams::default()).await.unwrap().items.len(), 1);
    let mut watch = api.watch_metadata(&WatchParams::default(), "0").await.unwrap().boxed();
    assert!(matches!(watch.try_next().await.unwrap(), Some(WatchEvent::Added(_))));
}

/// A status update by kubelet does not remove a terminating pod; kubelet's deletion with a grace period of 0
/// does.
#[tokio::test]
async fn a_terminating_pod_survives_status_updates() {
    use k8s_openapi::api::core::v1::Pod;
    let ApiFixture { client, .. } = setup();
    let pods: Api<Pod> = Api::default_namespaced(client);
    let pod = json!({
        "metadata": {"name": "p"},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]},
    });
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    let deleted = pods.delete("p", &DeleteParams::default()).await.unwrap().left().unwrap();
    assert_eq!(deleted.metadata.deletion_grace_period_seconds, Some(30));
    let status = Patch::Merge(json!({"status": {"phase": "Running"}}));
    pods.patch_status("p", &PatchParams::default(), &status).await.unwrap();
    assert_eq!(pods.get("p").await.unwrap().status.unwrap().phase.as_deref(), Some("Running"));
    pods.delete("p", &DeleteParams::default().grace_period(0)).await.unwrap();
    assert_eq!(error_code(pods.get("p").await), (404, "NotFound".to_owned()));
}
