package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// registrar registers a driver with kubelet. It behaves as node-driver-registrar, which is not on the module proxy.
type registrar struct {
	registration.UnimplementedRegistrationServer
	driver   string
	endpoint string
	rejected chan string
}

// register serves the registration of the driver, whose CSI socket is endpoint, in kubelet's registration directory. The name of
// the socket is that of node-driver-registrar. SIGTERM removes the socket, and SIGKILL leaves it behind. It returns an error if
// kubelet rejects the driver.
func register(driver, endpoint, directory string) error {
	path := filepath.Join(directory, driver+"-reg.sock")
	listener, err := listen(path)
	if err != nil {
		return err
	}
	defer os.Remove(path)
	server := grpc.NewServer()
	plugin := registrar{driver: driver, endpoint: endpoint, rejected: make(chan string, 1)}
	registration.RegisterRegistrationServer(server, plugin)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	select {
	case reason := <-plugin.rejected:
		return fmt.Errorf("kubelet rejected %s: %s", driver, reason)
	case <-signals:
		return nil
	case err := <-ended:
		return err
	}
}

func (r registrar) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	log.Printf("kubelet asks for %s", r.driver)
	return &registration.PluginInfo{
		Type:              registration.CSIPlugin,
		Name:              r.driver,
		Endpoint:          r.endpoint,
		SupportedVersions: []string{"1.0.0"},
	}, nil
}

func (r registrar) NotifyRegistrationStatus(_ context.Context, state *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	if state.PluginRegistered {
		log.Printf("kubelet registered %s", r.driver)
	} else {
		select {
		case r.rejected <- state.Error:
		default:
		}
	}
	return &registration.RegistrationStatusResponse{}, nil
}
