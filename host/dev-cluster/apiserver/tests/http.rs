//! The API over raw HTTP: status codes, tables, media types and limits, in-process and over a socket.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on says so by panicking"
)]

mod common;

use cofferdam_apiserver::{ApiServer, ApiService, Options, ServeError, ServeOptions};
use common::setup;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use tower::ServiceExt;

async fn send(
    service: &ApiService,
    method: Method,
    uri: &str,
    headers: &[(&str, &str)],
    body: String,
) -> (StatusCode, Value) {
    let mut request = Request::builder().method(method).uri(uri);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Full::new(bytes::Bytes::from(body))).unwrap();
    let response = service.clone().oneshot(request).await.unwrap();
    let code = response.status();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    (code, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

async fn get(service: &ApiService, uri: &str, accept: &str) -> (StatusCode, Value) {
    send(service, Method::GET, uri, &[("accept", accept)], String::new()).await
}

async fn create(service: &ApiService, uri: &str, body: &Value) -> (StatusCode, Value) {
    send(service, Method::POST, uri, &[("content-type", "application/json")], body.to_string()).await
}

const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";

fn claim(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    })
}

#[tokio::test]
async fn errors_are_returned_as_status_objects() {
    let service = setup().server.service();
    let (code, status) = get(&service, &format!("{CLAIMS}/none"), "application/json").await;
    assert_eq!(code, 404);
    assert_eq!(
        status,
        json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": "persistentvolumeclaims \"none\" not found",
            "reason": "NotFound",
            "details": {"name": "none", "kind": "persistentvolumeclaims"},
            "code": 404,
        })
    );
    let (_, status) = get(&service, "/apis/storage.k8s.io/v1/storageclasses/none", "*/*").await;
    assert_eq!(status["message"], "storageclasses.storage.k8s.io \"none\" not found");
    assert_eq!(status["details"]["group"], "storage.k8s.io");

    let mut broken = claim("x");
    broken["spec"]["accessModes"] = json!([]);
    let (code, status) = create(&service, CLAIMS, &broken).await;
    assert_eq!(code, 422);
    assert_eq!(
        status["message"],
        "PersistentVolumeClaim \"x\" is invalid: spec.accessModes: Required value: at least 1 access mode is \
         required"
    );
    assert_eq!(
        status["details"]["causes"],
        json!([{
            "reason": "FieldValueRequired",
            "message": "Required value: at least 1 access mode is required",
            "field": "spec.accessModes",
        }])
    );
}

#[tokio::test]
async fn bad_requests_contain_the_reason() {
    let service = setup().server.service();
    let json_type = ("content-type", "application/json");
    let strict = format!("{CLAIMS}?fieldValidation=Strict");
    let mut unknown = claim("x");
    unknown["spec"]["sise"] = json!("1Gi");
    let mut quantity = claim("x");
    quantity["spec"]["resources"]["requests"]["storage"] = json!("1gb");
    let mut shape = claim("x");
    shape["spec"]["accessModes"] = json!("ReadWriteOnce");
    let mut version = claim("x");
    version["apiVersion"] = json!("v2");
    let mut namespace = claim("x");
    namespace["metadata"]["namespace"] = json!("other");
    for (uri, header, body, code, expected) in [
        (
            strict.as_str(),
            json_type,
            unknown.to_string(),
            400,
            "strict decoding error: unknown field \"spec.sise\"",
        ),
        (CLAIMS, json_type, quantity.to_string(), 400, "quantities must match the regular expression"),
        (
            CLAIMS,
            json_type,
            shape.to_string(),
            400,
            "cannot unmarshal string into Go struct field PersistentVolumeClaimSpec.spec.accessModes",
        ),
        (
            CLAIMS,
            json_type,
            version.to_string(),
            400,
            "no kind \"PersistentVolumeClaim\" is registered for version \"v2\"",
        ),
        (CLAIMS, json_type, namespace.to_string(), 400, "does not match the namespace sent on the request"),
        (CLAIMS, json_type, "{\"a\":".to_owned(), 400, "unexpected end of JSON input ({\"a\":)"),
        (CLAIMS, json_type, "[]".to_owned(), 400, "cannot unmarshal array into Go value"),
        (CLAIMS, ("content-type", "text/plain"), "a: b".to_owned(), 415, "accepted media types include"),
        (
            &format!("{CLAIMS}?dryRun=Some"),
            json_type,
            claim("x").to_string(),
            422,
            "dryRun: Unsupported value",
        ),
        (CLAIMS, json_type, " ".repeat(3 * 1024 * 1024 + 1), 413, "limit is 3145728"),
    ] {
        let (found, status) = send(&service, Method::POST, uri, &[header], body).await;
        assert_eq!(found, code, "{status}");
        let message = status["message"].as_str().unwrap();
        assert!(message.contains(expected), "{message}");
    }
    let (code, created) = create(&service, CLAIMS, &unknown).await;
    assert_eq!(code, 201);
    assert_eq!(created["spec"].get("sise"), None, "dropped unless asked otherwise");
    let (code, _) = get(&service, "/api/v1/configmaps", "application/vnd.kubernetes.protobuf").await;
    assert_eq!(code, 406);
    let (code, _) = get(&service, &format!("{CLAIMS}/x/scale"), "*/*").await;
    assert_eq!(code, 404);
    let (code, status) = send(&service, Method::PUT, CLAIMS, &[json_type], "{}".to_owned()).await;
    assert_eq!((code.as_u16(), status["reason"].as_str()), (405, Some("MethodNotAllowed")));
    let (code, status) = get(&service, "/api/v1/widgets", "*/*").await;
    assert_eq!((code.as_u16(), &status["reason"]), (404, &json!("NotFound")));
    let (code, text) = get(&service, "/widgets", "*/*").await;
    assert_eq!((code.as_u16(), text), (404, json!("404 page not found\n")));
}

#[tokio::test]
async fn tables_have_the_printer_columns_of_kubernetes() {
    let service = setup().server.service();
    create(&service, CLAIMS, &claim("data")).await;
    let accept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
    let (_, table) = get(&service, CLAIMS, accept).await;
    let columns: Vec<&str> = table["columnDefinitions"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|one| one["name"].as_str())
        .collect();
    assert_eq!(
        columns,
        [
            "Name",
            "Status",
            "Volume",
            "Capacity",
            "Access Modes",
            "StorageClass",
            "VolumeAttributesClass",
            "Age",
            "VolumeMode"
        ]
    );
    let row = &table["rows"][0];
    assert_eq!(row["cells"], json!(["data", "Pending", "", "", "", "", "<unset>", "0s", "Filesystem"]));
    assert_eq!(row["object"]["kind"], "PartialObjectMetadata");
    let (_, table) = get(&service, &format!("{CLAIMS}?includeObject=None"), accept).await;
    assert_eq!(table["rows"][0]["object"], Value::Null);
    for resource in ["/api/v1/namespaces", "/api/v1/events", "/apis/storage.k8s.io/v1/csinodes"] {
        let (code, table) = get(&service, resource, accept).await;
        assert_eq!(code, 200);
        let width = table["columnDefinitions"].as_array().unwrap().len();
        for row in table["rows"].as_array().unwrap() {
            assert_eq!(row["cells"].as_array().unwrap().len(), width, "{resource}");
        }
    }
}

#[tokio::test]
async fn a_pod_can_be_bound_to_a_node_once() {
    let service = setup().server.service();
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let (code, created) = create(&service, pods, &pod).await;
    assert_eq!(code, 201, "{created}");
    let path = format!("{pods}/p/binding");
    let to = |node: &str| json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": node}});
    let (code, refused) = create(&service, &path, &to("")).await;
    assert_eq!(code, 422, "{refused}");
    let (code, status) = create(&service, &path, &to("n1")).await;
    assert_eq!((code.as_u16(), status["status"].as_str()), (201, Some("Success")), "{status}");
    let (_, found) = get(&service, &format!("{pods}/p"), "application/json").await;
    assert_eq!(found["spec"]["nodeName"], "n1");
    let scheduled = &found["status"]["conditions"][0];
    assert_eq!((&scheduled["type"], &scheduled["status"]), (&json!("PodScheduled"), &json!("True")));
    let (code, refused) = create(&service, &path, &to("n2")).await;
    assert_eq!(code, 409);
    assert_eq!(
        refused["message"],
        "Operation cannot be fulfilled on pods/binding \"p\": pod p is already assigned to node \"n1\""
    );
    assert_eq!(get(&service, &path, "application/json").await.0, 405);
    let (code, _) = create(
        &service,
        &format!("{pods}/q/binding"),
        &json!({"metadata": {"name": "q"}, "target": {"name": "n"}}),
    )
    .await;
    assert_eq!(code, 404);
}

#[tokio::test]
async fn discovery_is_aggregated_on_request() {
    let service = setup().server.service();
    let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";
    let (_, document) = get(&service, "/apis", accept).await;
    assert_eq!(document["kind"], "APIGroupDiscoveryList");
    assert_eq!(document["items"][0]["metadata"]["name"], "storage.k8s.io");
    let (_, document) = get(&service, "/api", "application/json").await;
    assert_eq!(document["kind"], "APIVersions");
    let (_, document) = get(&service, "/openapi/v3/api/v1?hash=x", "application/json").await;
    let path = "/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}";
    assert_eq!(document["paths"][path]["patch"]["parameters"][1]["name"], "fieldValidation");
    let (_, document) = get(&service, "/openapi/v2", "application/json").await;
    assert_eq!(document["swagger"], "2.0");
}

#[tokio::test]
async fn string_data_of_secrets_is_stored_as_base64() {
    let service = setup().server.service();
    let secret = json!({"metadata": {"name": "s"}, "stringData": {"key": "foobar"}});
    let (_, created) = create(&service, "/api/v1/namespaces/default/secrets", &secret).await;
    assert_eq!(created["data"]["key"], "Zm9vYmFy");
    assert_eq!(created.get("stringData"), None);
    assert_eq!(created["type"], "Opaque");
}

#[tokio::test]
async fn requests_over_tls_require_the_bearer_token() {
    let server = ApiServer::new(Options::default());
    let serving = server.serve(ServeOptions::default()).await.unwrap();
    let config = kube::config::Kubeconfig::from_yaml(&serving.kubeconfig()).unwrap();
    let connect = async |config: kube::config::Kubeconfig| {
        let config =
            kube::Config::from_custom_kubeconfig(config, &kube::config::KubeConfigOptions::default()).await;
        kube::Client::try_from(config.unwrap()).unwrap()
    };
    let client = connect(config.clone()).await;
    let api: kube::Api<k8s_openapi::api::core::v1::Namespace> = kube::Api::all(client);
    let names = api.list(&kube::api::ListParams::default()).await.unwrap();
    assert_eq!(names.items.len(), 4);
    assert!(!format!("{serving:?}").contains(serving.token()));

    let mut wrong = config;
    wrong.auth_infos[0].auth_info.as_mut().unwrap().token = Some("guess".to_owned().into());
    let client = connect(wrong).await;
    let api: kube::Api<k8s_openapi::api::core::v1::Namespace> = kube::Api::all(client.clone());
    let refused = api.list(&kube::api::ListParams::default()).await;
    assert_eq!(common::error_code(refused), (401, "Unauthorized".into()));
    let health = Request::get("/healthz").body(Vec::new()).unwrap();
    assert_eq!(client.request_text(health).await.unwrap(), "ok");
    serving.shutdown().await;
}

#[tokio::test]
async fn serving_on_a_non_loopback_address_is_rejected() {
    let server = ApiServer::new(Options::default());
    let options = ServeOptions { addr: "0.0.0.0:0".parse().unwrap() };
    let error = server.serve(options).await.unwrap_err();
    assert!(matches!(error, ServeError::NotLoopback(_)));
    assert!(error.to_string().contains("0.0.0.0:0"));
}
