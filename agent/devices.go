package agent

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/berth-node/berth/agent/config"
	"github.com/berth-node/berth/agent/device"
	"github.com/berth-node/berth/agent/topology"
)

// devicesFile has which container was given which devices, in the root directory.
const devicesFile = "devices.json"

// The directories of sockets, by kubelet's names.
const (
	devicePluginDir = "device-plugins"
)

func openDevices(c *Config) (*device.Manager, error) {
	if err := os.MkdirAll(c.RootDir, 0o711); err != nil {
		return nil, fmt.Errorf("make root directory: %w", err)
	}
	machine, err := topology.Read("/")
	if err != nil {
		return nil, err
	}
	d := device.Config{Dir: filepath.Join(c.KubeletDir, devicePluginDir), File: filepath.Join(c.RootDir, devicesFile), Log: c.Log}
	for _, n := range machine.Nodes {
		d.Nodes = append(d.Nodes, n.ID)
	}
	return device.New(d)
}

// deviceFiles are what agents of a place keep and serve for devices.
func deviceFiles(p config.Place) []string {
	return []string{
		filepath.Join(p.RootDir, devicesFile), filepath.Join(p.RootDir, devicesFile+".new"), filepath.Join(p.RootDir, devicesFile+".bad"),
		filepath.Join(p.KubeletDir, devicePluginDir, device.SocketName),
	}
}

// deviceDirs are the directories that agents of a place make for sockets.
func deviceDirs(p config.Place) []string {
	return []string{filepath.Join(p.KubeletDir, devicePluginDir)}
}
