package oci

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// IDs are the ids of a pod that has a user namespace of its own, as the host numbers them.
type IDs struct{ UIDs, GIDs specs.LinuxIDMapping }

// Owner is a user and group of the host.
type Owner struct{ UID, GID uint32 }

// Root is who the pod's root is on the host: root, where the pod has no ids of its own.
func (i *IDs) Root() Owner {
	if i == nil {
		return Owner{}
	}
	return Owner{UID: i.UIDs.HostID - i.UIDs.ContainerID, GID: i.GIDs.HostID - i.GIDs.ContainerID}
}

// UserNamespace reads what the CRI says about the ids of a pod or container, and refuses what cannot be; nil is the
// host's.
func UserNamespace(u *runtimeapi.UserNamespace) (*IDs, error) {
	if u == nil {
		return nil, nil
	}
	switch u.GetMode() {
	case runtimeapi.NamespaceMode_NODE:
		if len(u.GetUids()) > 0 || len(u.GetGids()) > 0 {
			return nil, fmt.Errorf("user namespace: mode %s takes no mappings, got %d of uids and %d of gids",
				u.GetMode(), len(u.GetUids()), len(u.GetGids()))
		}
		return nil, nil
	case runtimeapi.NamespaceMode_POD:
	default:
		return nil, fmt.Errorf("user namespace: mode %s is not supported, only %s and %s are", u.GetMode(),
			runtimeapi.NamespaceMode_POD, runtimeapi.NamespaceMode_NODE)
	}
	uids, err := oneMapping(u.GetUids())
	if err != nil {
		return nil, fmt.Errorf("user namespace: uids: %w", err)
	}
	gids, err := oneMapping(u.GetGids())
	if err != nil {
		return nil, fmt.Errorf("user namespace: gids: %w", err)
	}
	return &IDs{UIDs: uids, GIDs: gids}, nil
}

func oneMapping(list []*runtimeapi.IDMapping) (specs.LinuxIDMapping, error) {
	var none specs.LinuxIDMapping
	if len(list) != 1 {
		return none, fmt.Errorf("exactly one mapping is needed, got %d", len(list))
	}
	m := list[0]
	switch {
	case m.GetLength() == 0:
		return none, errors.New("mapping has no length")
	case m.GetContainerId() != 0:
		return none, fmt.Errorf("mapping begins at %d, so that root has no id on the host", m.GetContainerId())
	case m.GetHostId() > math.MaxUint32-m.GetLength():
		return none, fmt.Errorf("mapping of %d ids to %d leads beyond the last id", m.GetLength(), m.GetHostId())
	}
	return specs.LinuxIDMapping{ContainerID: m.GetContainerId(), HostID: m.GetHostId(), Size: m.GetLength()}, nil
}

// SameUserNamespace refuses a container whose ids are not those of its sandbox.
func SameUserNamespace(sandbox, container *runtimeapi.UserNamespace) error {
	if _, err := UserNamespace(container); err != nil {
		return err
	}
	mode := func(u *runtimeapi.UserNamespace) runtimeapi.NamespaceMode {
		if u == nil {
			return runtimeapi.NamespaceMode_NODE
		}
		return u.GetMode()
	}
	same := func(a, b []*runtimeapi.IDMapping) bool {
		return slices.EqualFunc(a, b, func(x, y *runtimeapi.IDMapping) bool { return proto.Equal(x, y) })
	}
	if mode(sandbox) != mode(container) || !same(sandbox.GetUids(), container.GetUids()) || !same(sandbox.GetGids(), container.GetGids()) {
		return fmt.Errorf("user namespace of the container (%v) is not that of its sandbox (%v)", container, sandbox)
	}
	return nil
}
