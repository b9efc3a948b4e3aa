package local

import (
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
