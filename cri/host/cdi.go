package host

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/berth-node/berth/cri/fault"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/pkg/parser"
)

// CDI knows the devices of the Container Device Interface. The files that describe them are read when a container asks
// for such a device, and not before: most nodes have none.
type CDI struct {
	Dirs []string // the later wins

	mu    sync.Mutex
	cache *cdi.Cache
}

// Inject puts the named devices into a container's specification.
func (d *CDI) Inject(spec *specs.Spec, names []string) error {
	if len(names) == 0 {
		return nil
	}
	if d == nil || len(d.Dirs) == 0 {
		return fault.Invalidf("CDI devices %s: no directory of CDI specifications is configured", strings.Join(names, ", "))
	}
	// One at a time: a refresh replaces what an injection reads.
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cache == nil {
		// Without its watches: the files are read again each time, since that is when they count.
		cache, err := cdi.NewCache(cdi.WithSpecDirs(d.Dirs...), cdi.WithAutoRefresh(false))
		if err != nil {
			return fmt.Errorf("read CDI specifications: %w", err)
		}
		d.cache = cache
	}
	broken := d.cache.Refresh()
	unknown, err := d.cache.InjectDevices(spec, names...)
	if len(unknown) > 0 {
		err := fmt.Errorf("CDI devices %s are not in any specification in %s", strings.Join(unknown, ", "), strings.Join(d.Dirs, ", "))
		// Perhaps they are in one that cannot be read.
		return fmt.Errorf("%w: %w", fault.ErrInvalid, errors.Join(err, broken))
	}
	if err != nil {
		return fmt.Errorf("CDI devices %s: %w", strings.Join(names, ", "), err)
	}
	return nil
}

// CDINames are the devices a container asks for: in its configuration, or in annotations, as clients did before there
// was a field for them. Kubelet gives both.
func CDINames(cfg *runtimeapi.ContainerConfig) ([]string, error) {
	var names []string
	for _, d := range cfg.GetCDIDevices() {
		names = append(names, d.GetName())
	}
	_, annotated, err := cdi.ParseAnnotations(cfg.GetAnnotations())
	if err != nil {
		return nil, fmt.Errorf("%w: %w", fault.ErrInvalid, err)
	}
	for _, name := range annotated {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for _, name := range names {
		if _, _, _, err := parser.ParseQualifiedName(name); err != nil {
			return nil, fmt.Errorf("%w: %w", fault.ErrInvalid, err)
		}
	}
	return names, nil
}
