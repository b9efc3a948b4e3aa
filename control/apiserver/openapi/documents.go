package openapi

import (
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"fmt"
	"io"
	"net/http"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/emicklei/go-restful/v3"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/server/routes"
	"k8s.io/apiserver/pkg/util/responsewriter"
	"k8s.io/kube-openapi/pkg/builder"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/common/restfuladapter"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// paths of the documents.
const (
	pathV2 = "/openapi/v2"
	pathV3 = "/openapi/v3"
)

// Documents are what a server's web services are described by. The library keeps each as the objects that it is made
// of, as JSON, and as Protobuf when somebody has asked for that: several times what all else of an idle server takes.
// Here they are kept compressed, and each version is made when somebody asks for it: nodes and controllers never do.
type Documents struct {
	services []*restful.WebService
	begun    time.Time
	two      *document
	names    map[string]bool // of the documents of version 3: paths below that of the index

	mu     sync.Mutex
	three  *common.OpenAPIV3Config
	groups map[string]*document // by path below that of version 3; nil: they are not made yet
}

// document is one that is served. It does not change.
type document struct {
	make func() ([]byte, error) // nil: it is there

	mu    sync.Mutex
	etag  string
	json  packed
	proto packed // the same in Protobuf; empty: nobody has asked for it
}

// packed is a text that is kept compressed.
type packed struct {
	data []byte
	size int
}

// Describe has a server's web services be described. All of them have to be there.
func Describe(services []*restful.WebService, two *common.Config, three *common.OpenAPIV3Config) *Documents {
	d := &Documents{services: services, three: three, begun: time.Now(), names: map[string]bool{}}
	d.two = &document{make: func() ([]byte, error) { return versionTwo(services, two) }}
	for _, s := range services {
		d.names[nameOfService(s)] = true
	}
	return d
}

func nameOfService(s *restful.WebService) string { return strings.TrimPrefix(s.RootPath(), "/") }

// unmade is where a document of version 3 is that is not known yet by what it says.
func unmade(name string) string { return (&document{}).url(name) }

// made are the documents of version 3. The first who asks has all of them made: clients begin with the index, which
// has a hash of each.
func (d *Documents) made() (map[string]*document, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.groups != nil {
		return d.groups, nil
	}
	c := *d.three
	if c.Definitions == nil {
		// The library would make those of all types anew for each document.
		c.Definitions = c.GetDefinitions(func(name string) spec.Ref {
			name, _ = c.GetDefinitionName(name)
			return spec.MustCreateRef("#/components/schemas/" + common.EscapeJsonPointer(name))
		})
	}
	var p packer
	all := map[string]*document{}
	for _, s := range d.services {
		// One at a time: what the library makes of it is garbage when it has been compressed.
		text, err := versionThree(s, &c)
		if err != nil {
			return nil, err
		}
		one := &document{}
		if err := one.put(text, &p); err != nil {
			return nil, err
		}
		all[nameOfService(s)] = one
	}
	d.groups = all
	return all, nil
}

// versionThree is what the library describes a web service by.
func versionThree(s *restful.WebService, c *common.OpenAPIV3Config) ([]byte, error) {
	paths := mux.NewPathRecorderMux("openapi")
	routes.OpenAPI{V3Config: c}.InstallV3(restful.NewContainer().Add(s), paths)
	r, err := http.NewRequest(http.MethodGet, pathV3+s.RootPath(), nil) // it is answered in this process
	if err != nil {
		return nil, fmt.Errorf("describe %s: %w", s.RootPath(), err)
	}
	w := responsewriter.NewInMemoryResponseWriter()
	paths.ServeHTTP(w, r)
	if len(w.Data()) == 0 {
		return nil, fmt.Errorf("describe %s: the library has no description of it (%s)", s.RootPath(), w)
	}
	return w.Data(), nil
}

// versionTwo is what the library describes web services by.
func versionTwo(services []*restful.WebService, c *common.Config) ([]byte, error) {
	all, err := builder.BuildOpenAPISpecFromRoutes(restfuladapter.AdaptWebServices(services), c)
	if err != nil {
		return nil, err
	}
	all.Definitions = handler.PruneDefaults(all.Definitions)
	return all.MarshalJSON()
}

// Install has the path of version 2 of a server answered with its document, and that of version 3 with nothing: the
// aggregator asks there every second what has changed, which of these is nothing ever. [Documents.Complete] has them.
func (d *Documents) Install(paths *mux.PathRecorderMux) {
	paths.Handle(pathV2, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d.serve(w, r, d.two, "", handler.ToProtoBinary, protobufV2)
	}))
	paths.Handle(pathV3, Undescribed(http.NotFoundHandler()))
}

// put keeps a document.
func (d *document) put(text []byte, p *packer) (err error) {
	d.json, err = p.pack(text)
	d.etag, d.make = etagOf(text), nil
	return err
}

func etagOf(text []byte) string { return fmt.Sprintf("%X", sha512.Sum512(text)) }

// url is where a document of version 3 is, by what it says: clients keep what they have under such a one for ever.
func (d *document) url(name string) string { return path.Join(pathV3, name) + "?hash=" + d.etag }

// text is the document, as it is served, and what it is known by.
func (d *document) text(encode func([]byte) ([]byte, error)) (text []byte, etag string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.make != nil {
		text, err := d.make()
		if err != nil {
			return nil, "", err
		}
		if err := d.put(text, new(packer)); err != nil {
			return nil, "", err
		}
	}
	if encode != nil && d.proto.size > 0 {
		text, err = d.proto.unpack()
		return text, d.etag, err
	}
	if text, err = d.json.unpack(); err != nil || encode == nil {
		return text, d.etag, err
	}
	if text, err = encode(text); err == nil {
		d.proto, err = new(packer).pack(text)
	}
	return text, d.etag, err
}

// packer compresses one text after the other: what it does that with is larger than most of them.
type packer struct{ z *gzip.Writer }

func (p *packer) pack(text []byte) (packed, error) {
	var b bytes.Buffer
	var err error
	if p.z == nil {
		p.z, err = gzip.NewWriterLevel(&b, gzip.BestSpeed)
	} else {
		p.z.Reset(&b)
	}
	if err == nil {
		_, err = p.z.Write(text)
	}
	if err == nil {
		err = p.z.Close()
	}
	if err != nil {
		return packed{}, fmt.Errorf("compress description: %w", err)
	}
	return packed{bytes.Clone(b.Bytes()), len(text)}, nil // the buffer has room for more
}

func (p packed) unpack() ([]byte, error) {
	text := make([]byte, p.size)
	z, err := gzip.NewReader(bytes.NewReader(p.data))
	if err == nil {
		_, err = io.ReadFull(z, text)
	}
	if err != nil {
		return nil, fmt.Errorf("read description: %w", err)
	}
	return text, nil
}
