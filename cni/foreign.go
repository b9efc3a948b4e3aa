package cni

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containernetworking/cni/libcni"
)

// foreignNetwork is the network that a file in the configuration directory describes, with plugins that are executed.
type foreignNetwork struct {
	conf    confDir
	records records
	cni     *libcni.CNIConfig // what plugins keep may outlive a boot, so results do
	plugins *seam
	binDirs []string
}

func newForeignNetwork(c Config, plugins *seam) *foreignNetwork {
	return &foreignNetwork{
		conf: confDir{dir: c.ConfDir, required: c.NeedConf}, records: records{dir: filepath.Join(c.CacheDir, "adds")},
		cni: libcni.NewCNIConfigWithCacheDir(c.BinDirs, c.CacheDir, plugins), plugins: plugins, binDirs: c.BinDirs,
	}
}

// list is the network that is configured; errNoConf when none is.
func (f *foreignNetwork) list() (*libcni.NetworkConfigList, error) {
	list, err := f.conf.get()
	if err != nil {
		return nil, err
	}
	return list, f.findPlugins(list)
}

// findPlugins says which plugin of a network is not there. It is asked before anything is recorded: a chain with a
// plugin missing cannot be undone either.
func (f *foreignNetwork) findPlugins(list *libcni.NetworkConfigList) error {
	for _, p := range list.Plugins {
		if _, err := f.plugins.FindInPath(p.Network.Type, f.binDirs); err != nil {
			return fmt.Errorf("network %s: %w", list.Name, err)
		}
	}
	return nil
}

// begun says that something of an earlier try may be there.
func (f *foreignNetwork) begun(id string) bool {
	_, err := os.Lstat(f.records.path(id))
	return err == nil
}

// prepare records what a sandbox is set up with.
func (f *foreignNetwork) prepare(list *libcni.NetworkConfigList, p Pod) (attachment, error) {
	pod := p.runtimeConf()
	return attachment{f.cni, list, pod}, f.records.put(p.ID, record{
		Conf: list.Bytes, NetNS: p.NetNS, Args: pod.Args, Capabilities: pod.CapabilityArgs,
	})
}

// del takes a sandbox off the network that it was set up with, and says whether it was with one of these.
func (f *foreignNetwork) del(ctx context.Context, p Pod) (was bool, err error) {
	rec, err := f.records.get(p.ID)
	if rec == nil || err != nil {
		return false, err
	}
	list, err := rec.list()
	if err == nil {
		err = f.cni.DelNetworkList(ctx, list, &libcni.RuntimeConf{
			ContainerID: p.ID, NetNS: p.NetNS, IfName: podInterface, Args: rec.Args, CapabilityArgs: rec.Capabilities,
		})
	}
	if err == nil {
		err = f.records.remove(p.ID)
	}
	return true, err
}

// status asks the plugins.
func (f *foreignNetwork) status(list *libcni.NetworkConfigList) error {
	if err := f.cni.GetStatusNetworkList(context.Background(), list); err != nil {
		return fmt.Errorf("network %s: %w", list.Name, err)
	}
	return nil
}
