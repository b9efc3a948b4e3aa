package local

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/berth-node/berth/csi/local/record"
)

// Whatever is asked for, it is refused with a code, or is something that can be made.
func FuzzRequest(f *testing.F) {
	seed, err := proto.Marshal(request("n", typeLoop, mounted("xfs"), 1<<30))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Add([]byte{})
	b, p := &backends{}, place{node: "here"}
	f.Fuzz(func(t *testing.T, data []byte) {
		var q csi.CreateVolumeRequest
		if proto.Unmarshal(data, &q) != nil {
			return
		}
		s, err := b.readShape(q.GetParameters(), q.GetVolumeCapabilities())
		if err != nil {
			if status.Code(err) != codes.InvalidArgument {
				t.Errorf("%v", err)
			}
			return
		}
		if s.Type == typeDirectory && (s.Block || s.Encrypted) || s.Type == typeLVM {
			t.Errorf("%+v", s)
		}
		sizes, err := readRange(q.GetCapacityRange())
		if err != nil {
			return
		}
		size, err := sizes.choose(leastOf(s.FSType), defaultSize)
		if err != nil {
			return
		}
		if size < leastOf(s.FSType) || size > maxSize+sizeStep || size%sizeStep != 0 || !sizes.has(size) {
			t.Errorf("%d bytes of %+v", size, sizes)
		}
		if id := idOf(volumeKind, q.GetName()); !record.IsID(id) || strings.ContainsAny(id, "/.") {
			t.Errorf("%q has the ID %q", q.GetName(), id)
		}
		_ = p.here(q.GetAccessibilityRequirements())
		_, _ = sourceID(q.GetVolumeContentSource())
	})
}

// Whatever a pod says of its inline volume, and how it is to be mounted, it is refused with a code that names the
// field, or has a size and an ID that can be part of a path.
func FuzzInline(f *testing.F) {
	for _, attributes := range []map[string]string{
		{"size": "2Gi", "type": "loop"}, {"size": "-1"}, {"size": "1e3k"}, {"encryption": "luks"}, {"csi.storage.k8s.io/ephemeral": "true", "trim": "never"},
	} {
		seed, err := proto.Marshal(&csi.NodePublishVolumeRequest{
			VolumeId: "../x", TargetPath: "/a/../b", VolumeContext: attributes, VolumeCapability: mounted("ext4"), Readonly: true,
		})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(seed)
	}
	b := &backends{}
	in, p := &inlines{backends: b}, &publisher{backends: b, dir: "/data"}
	f.Fuzz(func(t *testing.T, data []byte) {
		var q csi.NodePublishVolumeRequest
		if proto.Unmarshal(data, &q) != nil {
			return
		}
		if err := placed("target_path", q.GetTargetPath()); err == nil && p.outside("target_path", q.GetTargetPath()) == nil {
			if at := q.GetTargetPath(); !filepath.IsAbs(at) || strings.HasPrefix(at, "/data/") || filepath.Clean(at) != at {
				t.Errorf("%q is a target", at)
			}
		}
		_ = readsOnly(&q)
		v, sizes, err := in.readInline(&q)
		if err != nil {
			if status.Code(err) != codes.InvalidArgument {
				t.Errorf("%v", err)
			}
			return
		}
		size, err := sizes.choose(leastOf(v.FSType), defaultSize)
		if code := status.Code(err); code != codes.OK && code != codes.OutOfRange {
			t.Errorf("%v", err)
		}
		if err == nil && (size <= 0 || size%sizeStep != 0) || !record.IsID(v.ID) || v.Encrypted || v.Type == typeLVM {
			t.Errorf("%d bytes, %+v", size, v)
		}
		if err := fits(v, "volume_capability", q.GetVolumeCapability()); err != nil && status.Code(err) != codes.InvalidArgument {
			t.Errorf("%v", err)
		}
	})
}
