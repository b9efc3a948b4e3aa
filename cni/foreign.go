package cni

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/containernetworking/cni/libcni"
)

// foreignNetwork is the network that a file in the configuration directory describes, with plugins that are executed.
type foreignNetwork struct {
	log     *slog.Logger
	boot    string
	conf    confDir
	records records
	cni     *libcni.CNIConfig
	plugins *seam
	binDirs []string
}

func newForeignNetwork(c Config, boot string, plugins *seam) *foreignNetwork {
	return &foreignNetwork{
		log: c.Log, boot: boot, conf: confDir{dir: c.ConfDir, required: c.NeedConf},
		records: records{lasting: c.RecordDir, volatile: filepath.Join(c.CacheDir, "adds")},
		cni:     libcni.NewCNIConfigWithCacheDir(c.BinDirs, c.CacheDir, plugins), plugins: plugins, binDirs: c.BinDirs,
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
func (f *foreignNetwork) begun(id string) bool { return f.records.has(id) }

// prepare records what a sandbox is set up with.
func (f *foreignNetwork) prepare(list *libcni.NetworkConfigList, p Pod) (attachment, error) {
	pod := p.runtimeConf()
	limits, err := bandwidthOf(p.Annotations)
	if err != nil {
		return attachment{}, err
	}
	if limits != nil {
		pod.CapabilityArgs["bandwidth"] = limits
	}
	return attachment{f.cni, list, pod}, f.records.put(p.ID, record{
		Conf: list.Bytes, NetNS: p.NetNS, Args: pod.Args, Capabilities: pod.CapabilityArgs, Boot: f.boot,
	})
}

// del takes a sandbox off the network that it was set up with, and says whether it was with one of these.
func (f *foreignNetwork) del(ctx context.Context, p Pod) (was bool, err error) {
	rec, err := f.find(p)
	if rec == nil || err != nil {
		return false, err
	}
	list, err := rec.list()
	if err == nil {
		err = f.cni.DelNetworkList(ctx, list, &libcni.RuntimeConf{
			ContainerID: p.ID, NetNS: p.NetNS, IfName: podInterface, Args: rec.Args, CapabilityArgs: rec.Capabilities,
		})
	}
	if err != nil && rec.Boot != "" && rec.Boot != f.boot {
		return true, f.giveUp(p, list, err)
	}
	if err == nil {
		err = f.records.remove(p.ID)
	}
	return true, err
}

// giveUp leaves what plugins keep of a sandbox of an earlier boot to the next start. Nothing else is left of it, and
// its pod is not to wait for a network that the node may not have any more. Where the plugins are gone, nobody can free
// it.
func (f *foreignNetwork) giveUp(p Pod, list *libcni.NetworkConfigList, err error) error {
	attrs := append(p.attrs(), "error", err)
	if list == nil || f.findPlugins(list) != nil {
		f.log.Warn("what plugins keep of a sandbox of an earlier boot, as its address, cannot be freed any more", attrs...)
		return f.records.remove(p.ID)
	}
	f.log.Warn("what plugins keep of a sandbox of an earlier boot, as its address, is not freed: the next start tries again",
		attrs...)
	return nil
}

// find returns what a sandbox was set up with; nil when it was with the network built in. That its record cannot be
// read is not to keep it for ever: libcni has a record of its own of who was set up completely, and the network that is
// configured now is the best guess for others, as plugins take no offence at DEL of a sandbox that they do not know.
func (f *foreignNetwork) find(p Pod) (*record, error) {
	rec, damage := f.records.get(p.ID)
	if damage == nil {
		return rec, nil
	}
	f.log.Error("network record of a sandbox cannot be read and is put aside", append(p.attrs(), "error", damage)...)
	cached, err := f.cni.GetCachedAttachments(p.ID)
	for _, a := range cached {
		r := &record{Conf: a.Config, NetNS: a.NetNS, Args: a.CniArgs, Capabilities: a.CapabilityArgs}
		if _, perr := r.list(); perr == nil && rec == nil {
			rec = r
		}
	}
	if rec == nil {
		if list, lerr := f.list(); lerr == nil {
			pod := p.runtimeConf()
			rec = &record{Conf: list.Bytes, NetNS: p.NetNS, Args: pod.Args, Capabilities: pod.CapabilityArgs}
		}
	}
	if rec == nil {
		f.log.Error("what a network has of a sandbox may be left", append(p.attrs(), "error", err)...)
		return nil, f.records.putAside(p.ID)
	}
	if err := f.records.putAside(p.ID); err != nil {
		return nil, err
	}
	return rec, f.records.put(p.ID, *rec)
}

// status asks the plugins.
func (f *foreignNetwork) status(list *libcni.NetworkConfigList) error {
	if err := f.cni.GetStatusNetworkList(context.Background(), list); err != nil {
		return fmt.Errorf("network %s: %w", list.Name, err)
	}
	return nil
}
