// A CSI driver whose storage is this process's memory, to compare controllers with: whatever talks to it measures and proves
// itself, not the storage. Everything is idempotent as CSI wants it, and `csi-sanity` is its test.
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
)

func main() {
	log.SetFlags(log.LstdFlags | log.Lmicroseconds)
	if err := run(); err != nil {
		log.Fatalf("csi-driver: %v", err)
	}
}

func run() error {
	var options options
	var faults faults
	socket := flag.String("socket", "", "unix `socket` to serve CSI on")
	admin := flag.String("admin", "", "unix `socket` to serve the state and the faults on, by HTTP")
	flag.StringVar(&options.name, "name", "peer.cofferdam.dev", "`name` of the driver")
	flag.StringVar(&options.node, "node", "node-1", "`name` of the node that the node service is on")
	flag.Func("other-node", "`NAME=SOCKET`: another node that reaches the volumes, with the socket of its node service (repeatable)", options.another)
	flag.BoolVar(&options.anyNode, "any-node", false, "publish volumes to nodes that the driver does not know")
	flag.BoolVar(&options.attach, "attach", true, "volumes are published to nodes before they are used there")
	flag.StringVar(&options.directory, "directory", "", "`directory` that holds volumes; without one there is no node service")
	flag.Int64Var(&options.capacity, "capacity", 0, "`bytes` that all volumes have together; 0 is no limit")
	flag.DurationVar(&faults.latency, "latency", 0, "`time` that every call of the controller takes but those for its capabilities")
	flag.Func("fail", "`METHOD=CODE:TIMES`, such as CreateVolume=UNAVAILABLE:3: the next calls answer that (repeatable)", faults.parse)
	flag.Parse()
	if *socket == "" || flag.NArg() != 0 {
		return fmt.Errorf("expected --socket and no arguments")
	}

	listener, err := listen(*socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(faults.intercept))
	state := newState(options)
	csi.RegisterIdentityServer(server, identity{state: state})
	csi.RegisterControllerServer(server, controller{state: state})
	if options.directory != "" {
		csi.RegisterNodeServer(server, node{state: state, id: options.node})
		for name, socket := range options.others {
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

// The form of NAME=SOCKET.
func (o *options) another(text string) error {
	name, socket, ok := strings.Cut(text, "=")
	if !ok || name == "" || socket == "" {
		return fmt.Errorf("%q: expected NAME=SOCKET", text)
	}
	if o.others == nil {
		o.others = map[string]string{}
	}
	o.others[name] = socket
	return nil
}

// Another machine's part of the driver, in this process: it knows what the controller knows, as if it were told with each call.
func serveNode(state *state, faults *faults, name, socket string) error {
	listener, err := listen(socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(faults.intercept))
	csi.RegisterIdentityServer(server, identity{state: state})
	csi.RegisterNodeServer(server, node{state: state, id: name})
	go func() { log.Fatalf("csi-driver: %v", server.Serve(listener)) }()
	return nil
}

// A socket that an earlier process left behind is in nobody's use: whoever starts a driver twice on one path wants the second.
func listen(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	return net.Listen("unix", path)
}
