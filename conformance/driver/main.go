// Command csi-driver is a CSI driver that stores everything in memory. Suites and benchmarks use it to compare controllers,
// because it adds no storage latency. Every call is idempotent as CSI requires; `csi-sanity` tests the driver.
package main

import (
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
)

func main() {
	log.SetFlags(log.LstdFlags | log.Lmicroseconds)
	if err := run(); err != nil {
		log.Fatalf("csi-driver: %v", err)
	}
}

func run() error {
	var options options
	oddities := &oddities{secretCode: codes.Unauthenticated}
	faults := faults{oddities: oddities}
	options.oddities = oddities
	socket := flag.String("socket", "", "unix `socket` to serve CSI on")
	registry := flag.String("register", "", "kubelet's registration `directory`: register the driver behind --socket there, and serve nothing else")
	admin := flag.String("admin", "", "unix `socket` of the HTTP admin interface: state and fault injection")
	flag.StringVar(&options.name, "name", "peer.cofferdam.dev", "`name` of the driver")
	flag.StringVar(&options.node, "node", "node-1", "`name` of the node that the node service runs on")
	flag.Func("other-node", "`NAME=SOCKET`: another node with access to the volumes, and the socket of its node service (repeatable)", options.addNode)
	flag.BoolVar(&options.anyNode, "any-node", false, "publish volumes to unknown nodes, too")
	flag.BoolVar(&options.anyVolume, "any-volume", false, "accept the ids of volumes that a controller in another process created")
	flag.BoolVar(&options.attach, "attach", true, "require ControllerPublishVolume before a node uses a volume")
	flag.StringVar(&options.directory, "directory", "", "`directory` of the volumes; without it the driver has no node service")
	flag.Int64Var(&options.capacity, "capacity", 0, "total `bytes` of all volumes; 0 is no limit")
	flag.DurationVar(&faults.latency, "latency", 0, "`duration` of every controller call except ControllerGetCapabilities")
	flag.Func("fail", "`METHOD=CODE:TIMES`: the next calls fail with this code, for example CreateVolume=UNAVAILABLE:3 (repeatable)", faults.parse)
	flag.Func("require-secret", "`METHOD=KEY=VALUE`: calls of the method fail without this key and value in their Secret (repeatable)", oddities.requireSecret)
	flag.Func("secret-code", "`CODE` of calls without the expected Secret: UNAUTHENTICATED, which is the default, or INVALID_ARGUMENT", oddities.parseSecretCode)
	flag.BoolVar(&oddities.isTopologyUndeclared, "undeclared-topology", false, "return a topology for created volumes without the capability VOLUME_ACCESSIBILITY_CONSTRAINTS")
	flag.BoolVar(&oddities.lacksCreate, "no-create", false, "lack the capability CREATE_DELETE_VOLUME")
	flag.IntVar(&oddities.idLength, "id-length", 0, "minimum length of volume ids in `bytes`")
	flag.StringVar(&oddities.idPrefix, "id-prefix", "", "`prefix` of volume ids, for drivers that have no common state and may not return each other's ids")
	flag.IntVar(&oddities.notReady, "not-ready", 0, "`number` of Probe calls that return ready=false; until then every other call fails")
	flag.Func("call-log", "`file` to which the starts and ends of all calls are appended as JSON lines", faults.log.open)
	var furtherSockets []string
	flag.Func("further-socket", "another unix `socket` to serve CSI without the node service on (repeatable)", func(socket string) error {
		furtherSockets = append(furtherSockets, socket)
		return nil
	})
	flag.Parse()
	if *socket == "" || flag.NArg() != 0 {
		return fmt.Errorf("expected --socket and no arguments")
	}
	if *registry != "" {
		return register(options.name, *socket, *registry)
	}

	listener, err := listen(*socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(faults.interceptor(*socket)))
	state := newState(options)
	csi.RegisterIdentityServer(server, identity{state: state})
	csi.RegisterControllerServer(server, controller{state: state})
	for _, socket := range furtherSockets {
		if err := serveController(state, &faults, socket); err != nil {
			return err
		}
	}
	if options.directory != "" {
		csi.RegisterNodeServer(server, node{state: state, id: options.node})
		for name, socket := range options.otherNodes {
			if err := serveNode(state, &faults, name, socket); err != nil {
				return err
			}
		}
	}
	if *admin != "" {
		listener, err := listen(*admin)
		if err != nil {
			return err
		}
		go func() { log.Fatalf("csi-driver: %v", http.Serve(listener, adminHandler(state, &faults))) }()
	}

	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		<-signals
		server.GracefulStop()
	}()
	log.Printf("%s serves CSI on %s", options.name, *socket)
	return server.Serve(listener)
}

// addNode parses NAME=SOCKET.
func (o *options) addNode(text string) error {
	name, socket, ok := strings.Cut(text, "=")
	if !ok || name == "" || socket == "" {
		return fmt.Errorf("%q: expected NAME=SOCKET", text)
	}
	if o.otherNodes == nil {
		o.otherNodes = map[string]string{}
	}
	o.otherNodes[name] = socket
	return nil
}

// serveController serves the identity and the controller service at another socket.
func serveController(state *state, faults *faults, socket string) error {
	listener, err := listen(socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(faults.interceptor(socket)))
	csi.RegisterIdentityServer(server, identity{state: state})
	csi.RegisterControllerServer(server, controller{state: state})
	go func() { log.Fatalf("csi-driver: %v", server.Serve(listener)) }()
	return nil
}

// serveNode serves the node service of another node. It shares the state of the controller.
func serveNode(state *state, faults *faults, name, socket string) error {
	listener, err := listen(socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(faults.interceptor(socket)))
	csi.RegisterIdentityServer(server, identity{state: state})
	csi.RegisterNodeServer(server, node{state: state, id: name})
	go func() { log.Fatalf("csi-driver: %v", server.Serve(listener)) }()
	return nil
}

// listen replaces a socket that an earlier process left behind.
func listen(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	return net.Listen("unix", path)
}
