package pod

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/object"
	"github.com/berth-node/berth/agent/pod/spec"
	"github.com/berth-node/berth/agent/status"
	"github.com/berth-node/berth/agent/volume"
	volumekind "github.com/berth-node/berth/agent/volume/kind"
	"github.com/berth-node/berth/internal/filetree"
)

// site is what a pod has on the node beside its containers.
type site struct {
	node *node
	pod  *corev1.Pod

	attempt uint32 // of the sandbox
	old     string // sandbox to be ended first
	have    bool   // the sandbox is there

	sandbox string // its ID
	config  *runtimeapi.PodSandboxConfig
	ips     []string
	volumes map[string]string
	ids     *spec.IDs // nil: the node's
	known   []string  // all sandboxes, for their removal
}

// hook is one thing that a pod has on the node. Both of its verbs can be repeated; undo is safe when do never ran.
type hook struct {
	name     string
	do, undo func(context.Context) error
}

// hooks are in the order of making; those of one stage do not depend on each other. Undoing goes the other way. The directory is
// the record: it comes first and goes last, so that whatever is left of a pod is found by it.
func (s *site) hooks() [][]hook {
	early, beside := func(context.Context) error { return nil }, s.makeCgroup
	if s.node.cfg.Node.GroupFirst {
		early, beside = s.makeCgroup, early
	}
	first := [][]hook{
		{{"directory", s.makeDirectory, s.removeVolumes}}, // volumes are in the directory and go with it
	}
	return append(append(first, s.resourceHooks()...), // what was prepared may be in use until the group is gone
		// A runtime that was told to start a container by an agent that is dead makes the log's directory, until the sandbox is gone.
		[]hook{{"cgroup", early, s.removeCgroup}, {"logs", nil, s.removeLogs}},
		[]hook{
			{"sandbox", s.makeSandbox, s.removeSandboxes},
			// The sandbox needs no more of the group than its path; a runtime makes what is missing of it. The kernel lets everybody
			// who makes a group wait for milliseconds while a process is moved between groups, so that much is waited for beside.
			{"cgroup", beside, nil},
			{"volumes", s.makeVolumes, nil},
			{"files", s.makeFiles, nil},
		})
}

// hookError says which hook has failed.
type hookError struct {
	hook string
	err  error
}

func (e *hookError) Error() string { return e.hook + ": " + e.err.Error() }
func (e *hookError) Unwrap() error { return e.err }

// make does all of hooks. What it has made when it fails stays for the next try.
func (s *site) make(ctx context.Context) error {
	for _, stage := range s.hooks() {
		if err := s.together(ctx, stage, "", func(h hook) func(context.Context) error { return h.do }); err != nil {
			return err
		}
	}
	return s.writeHosts()
}

// unmake undoes hooks, the last stage first. It stops at the first error: what comes before may be in use by what is left.
func (s *site) unmake(ctx context.Context) error {
	for _, stage := range slices.Backward(s.hooks()) {
		if err := s.together(ctx, stage, "remove ", func(h hook) func(context.Context) error { return h.undo }); err != nil {
			return err
		}
	}
	return nil
}

// together runs one verb of the hooks of a stage side by side. None is cut off because another has failed: half of an act takes
// longer to mend than all of it.
func (s *site) together(ctx context.Context, stage []hook, prefix string, verb func(hook) func(context.Context) error) error {
	one := func(h hook) error {
		act := verb(h)
		if act == nil {
			return nil
		}
		began := time.Now()
		ctx, span := startSpan(ctx, prefix+h.name)
		err := act(ctx)
		endSpan(span, err)
		if err != nil {
			return &hookError{h.name, err}
		}
		s.node.cfg.Log.Debug("part of the pod is done", append(logAttrs(s.pod), "part", prefix+h.name, "took", time.Since(began))...)
		return nil
	}
	var g errgroup.Group
	for _, h := range stage[1:] {
		g.Go(func() error { return one(h) })
	}
	err := one(stage[0])
	return errors.Join(err, g.Wait())
}

func (s *site) directory() string {
	return filepath.Join(s.node.cfg.RootDir, "pods", string(s.pod.UID))
}

const dirMode = 0o750

func (s *site) makeDirectory(context.Context) error {
	if err := os.MkdirAll(s.directory(), dirMode); err != nil {
		return err
	}
	if s.pod.Name != "" { // else nothing more is known of it
		if err := keepDefinition(s.node.cfg.RootDir, s.pod); err != nil {
			return err
		}
	}
	if !ownUsers(s.pod) {
		return nil
	}
	return s.takeIDs()
}

// makeFiles makes what the containers will need, while the sandbox is being made: a new directory is an entry in the file
// system's journal, which takes its time.
func (s *site) makeFiles(context.Context) error {
	if err := makeFile(s.hostsFile(), 0o644, false); err != nil {
		return fmt.Errorf("make the pod's hosts: %w", err)
	}
	logs := spec.LogDirectory(s.node.cfg.LogDir, s.pod)
	for _, list := range [][]corev1.Container{s.pod.Spec.InitContainers, s.pod.Spec.Containers} {
		for i := range list {
			if err := os.MkdirAll(filepath.Join(logs, list[i].Name), 0o755); err != nil {
				return fmt.Errorf("make log directory: %w", err)
			}
			if err := makeFile(spec.MessageFile(s.node.cfg.RootDir, string(s.pod.UID), list[i].Name, 0), messageMode, false); err != nil {
				return fmt.Errorf("make termination message: %w", err)
			}
		}
	}
	return nil
}

func (s *site) makeVolumes(ctx context.Context) (err error) {
	content, err := s.content()
	if err != nil {
		return err
	}
	s.volumes, err = s.node.cfg.Volumes.Setup(ctx, s.pod, content)
	return err
}

// content is what the pod's volumes get of objects.
func (s *site) content() (volume.Content, error) {
	out := volume.Content{
		Files: map[string][]volumekind.File{}, Persistent: map[string]*corev1.PersistentVolume{},
		Secrets: map[string]volumekind.Secrets{},
	}
	for i := range s.pod.Spec.Volumes {
		v := &s.pod.Spec.Volumes[i]
		if err := s.contentOf(v, out); err != nil {
			return out, fmt.Errorf("MountVolume.SetUp failed for volume %q : %w", v.Name, err)
		}
	}
	return out, nil
}

// contentOf adds what one volume gets.
func (s *site) contentOf(v *corev1.Volume, to volume.Content) error {
	bound, claimed, err := s.persistent(v)
	if err != nil {
		return err
	}
	if claimed {
		to.Persistent[v.Name] = bound
	}
	for _, ref := range s.node.cfg.Volumes.Secrets(v, bound) {
		o, err := s.node.cfg.Objects.Secret(cmp.Or(ref.Namespace, s.pod.Namespace), ref.Name)
		if err != nil {
			return err
		}
		if to.Secrets[v.Name] == nil {
			to.Secrets[v.Name] = volumekind.Secrets{}
		}
		to.Secrets[v.Name][ref.Use] = o.Data
	}
	files, ok, err := spec.Files(s.pod, v, s.node.cfg.Objects, s.node.specNode())
	if ok {
		to.Files[v.Name] = files
	}
	return err
}

// persistent is the PersistentVolume that a volume of the pod is; false for a volume of any other kind.
func (s *site) persistent(v *corev1.Volume) (bound *corev1.PersistentVolume, ok bool, err error) {
	switch {
	case v.PersistentVolumeClaim != nil:
		bound, err = s.node.cfg.Objects.Volume(s.pod.Namespace, v.PersistentVolumeClaim.ClaimName)
	case v.Ephemeral != nil:
		claim := object.ClaimOf(s.pod, v)
		var name string
		name, err = s.node.cfg.Volumes.Bind(s.pod.UID, v.Name, func(taken volume.Taken) (string, error) {
			return chooseVolume(s.node.cfg.RootDir, s.node.cfg.Objects, s.node.cfg.Node.Labels, claim, taken)
		})
		if err == nil {
			bound, err = s.node.cfg.Objects.Bound(claim, name)
		}
		if err != nil {
			err = fmt.Errorf("persistentvolumeclaim %q: %w", claim.Name, err)
		}
	default:
		return nil, false, nil
	}
	return bound, true, err
}

func (s *site) removeVolumes(ctx context.Context) error {
	if err := s.node.cfg.Volumes.Teardown(ctx, s.pod.UID); err != nil {
		return err
	}
	// What else there may be is files of ours; a directory that is not empty then is somebody's and stays.
	err := os.Remove(s.directory())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

func (s *site) removeLogs(ctx context.Context) error {
	return RemoveLogs(ctx, s.node.cfg.LogDir, s.pod.UID)
}

// RemoveLogs removes a pod's logs. It finds their directory by the uid: of what is left of a pod the name may not be known.
func RemoveLogs(ctx context.Context, logDir string, uid types.UID) error {
	dirs, err := filepath.Glob(filepath.Join(logDir, "*_"+string(uid)))
	if err != nil {
		return fmt.Errorf("find logs of pod %s: %w", uid, err)
	}
	var errs []error
	for _, d := range dirs {
		errs = append(errs, filetree.RemoveAll(ctx, d))
	}
	return errors.Join(errs...)
}

func (s *site) makeCgroup(context.Context) error {
	_, err := s.node.cfg.Cgroups.EnsurePod(s.pod)
	return err
}

func (s *site) removeCgroup(ctx context.Context) error {
	return s.node.cfg.Cgroups.RemovePod(ctx, s.pod.UID, s.node.cfg.Cgroups.PodPath(s.pod))
}

// How long the runtime may take before it is asked again. A call that hangs must not hold up other pods for ever.
const (
	sandboxTimeout   = 4 * time.Minute // a network's plugins may be slow
	containerTimeout = 2 * time.Minute
)

// makeSandbox makes the sandbox unless it is there, after ending the one before it.
func (s *site) makeSandbox(ctx context.Context) error {
	config, warnings, err := spec.Sandbox(s.pod, s.node.sandboxNode(), s.attempt, s.node.cfg.Cgroups.PodPath(s.pod), s.ids)
	if err != nil {
		return err
	}
	s.config = config
	if !s.have {
		if s.old != "" {
			s.node.event(s.pod, corev1.EventTypeNormal, "SandboxChanged", "Pod sandbox changed, it will be killed and re-created.")
			if err := s.stopSandbox(ctx, s.old); err != nil {
				return fmt.Errorf("stop the sandbox before it: %w", err)
			}
		}
		for _, w := range warnings {
			s.node.event(s.pod, corev1.EventTypeWarning, w.Reason, "%s", w.Message)
		}
		ctx, cancel := context.WithTimeout(ctx, sandboxTimeout)
		defer cancel()
		r, err := s.node.cfg.Runtime.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: config, RuntimeHandler: s.node.handlerOf(s.pod)})
		if err != nil {
			return err
		}
		s.sandbox = r.GetPodSandboxId()
	}
	r, err := s.node.cfg.Runtime.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: s.sandbox})
	if err != nil {
		return fmt.Errorf("look at the sandbox: %w", err)
	}
	s.ips = status.PodIPs(s.pod, r.GetStatus(), s.node.nodeIPs())
	return nil
}

// handlerOf is the runtime handler that a pod's runtime class names; without such an object it is the one of the same name.
func (n *node) handlerOf(pod *corev1.Pod) string {
	name := pod.Spec.RuntimeClassName
	if name == nil {
		return ""
	}
	if c, err := n.cfg.Objects.RuntimeClass(*name); err == nil {
		return c.Handler
	}
	return *name
}

// features is what the pod's handler can do; nothing where the runtime does not say.
func (s *site) features() *runtimeapi.RuntimeHandlerFeatures {
	return s.node.handlers[s.node.handlerOf(s.pod)]
}

func (s *site) stopSandbox(ctx context.Context, id string) error {
	_, err := s.node.cfg.Runtime.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id})
	if isNotFound(err) {
		return nil
	}
	return err
}

// removeSandboxes removes every sandbox of the pod, also one whose making was cut off before anybody knew of it.
func (s *site) removeSandboxes(ctx context.Context) error {
	all := map[string]bool{}
	for _, id := range s.known {
		all[id] = true
	}
	list, err := s.node.cfg.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{
		LabelSelector: map[string]string{spec.PodUIDLabel: string(s.pod.UID)},
	}})
	if err != nil {
		return err
	}
	for _, one := range list.GetItems() {
		all[one.GetId()] = true
	}
	for id := range all {
		if err := s.stopSandbox(ctx, id); err != nil {
			return err
		}
		_, err := s.node.cfg.Runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})
		if err != nil && !isNotFound(err) {
			return err
		}
	}
	return nil
}

func (s *site) hostsFile() string { return filepath.Join(s.directory(), "etc-hosts") }

// writeHosts writes the pod's /etc/hosts when it is to change. It is written in place, because containers have it mounted.
func (s *site) writeHosts() error {
	hostname, err := spec.Hostname(s.pod, s.node.cfg.DNS.Domain)
	if err != nil {
		return err
	}
	var host []byte
	if s.pod.Spec.HostNetwork {
		if host, err = os.ReadFile("/etc/hosts"); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("read the node's hosts: %w", err)
		}
	}
	content := volume.HostsFile(s.pod, hostname, spec.FQDN(s.pod, spec.ShortName(s.pod), s.node.cfg.DNS.Domain), s.ips, host)
	if had, err := os.ReadFile(s.hostsFile()); err == nil && bytes.Equal(had, content) {
		return nil
	}
	if err := os.WriteFile(s.hostsFile(), content, 0o644); err != nil {
		return fmt.Errorf("write the pod's hosts: %w", err)
	}
	return nil
}

// makeFile makes a file with exactly that mode, and its directory. What is in it stays unless it is to be empty.
func makeFile(path string, mode fs.FileMode, empty bool) error {
	flags := os.O_CREATE | os.O_WRONLY
	if empty {
		flags |= os.O_TRUNC
	}
	f, err := os.OpenFile(path, flags, mode)
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.MkdirAll(filepath.Dir(path), dirMode); err == nil {
			f, err = os.OpenFile(path, flags, mode)
		}
	}
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Chmod(mode) // what the umask has taken away
}
