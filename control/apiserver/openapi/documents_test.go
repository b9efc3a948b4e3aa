package openapi

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"testing"

	"github.com/emicklei/go-restful/v3"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	apiopenapi "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/server/routes"
	"k8s.io/kube-openapi/pkg/common"

	"github.com/berth-node/berth/control/apiserver/scheme"
)

// someServices are a container's web services, and what the library describes them with.
func someServices(t *testing.T) (*restful.Container, *common.Config, *common.OpenAPIV3Config) {
	t.Helper()
	external, err := scheme.External()
	if err != nil {
		t.Fatal(err)
	}
	definitions, err := Definitions(external)
	if err != nil {
		t.Fatal(err)
	}
	namer := apiopenapi.NewDefinitionNamer(external)
	two, three := genericapiserver.DefaultOpenAPIConfig(definitions, namer), genericapiserver.DefaultOpenAPIV3Config(definitions, namer)
	two.Info.Version, three.Info.Version = "v1", "v1"
	c := restful.NewContainer()
	for path, object := range map[string]any{"/apis/apps/v1": appsv1.Deployment{}, "/apis/batch/v1": batchv1.Job{}, "/version/": nil} {
		s := new(restful.WebService).Path(path).Produces(restful.MIME_JSON)
		route := s.GET("things/{name}").To(func(*restful.Request, *restful.Response) {}).Operation("read" + path)
		if object != nil {
			route = route.Writes(object).Returns(http.StatusOK, "OK", object)
		}
		c.Add(s.Route(route))
	}
	return c, two, three
}

// TestDocuments has the documents be those that the library serves, with the same headers.
func TestDocuments(t *testing.T) {
	c, two, three := someServices(t)
	library, ours := mux.NewPathRecorderMux("library"), mux.NewPathRecorderMux("ours")
	routes.OpenAPI{Config: two}.InstallV2(c, library)
	routes.OpenAPI{V3Config: three}.InstallV3(c, library)
	d, err := Describe(c.RegisteredWebServices(), two, three)
	if err != nil {
		t.Fatal(err)
	}
	d.Install(ours)
	first := httptest.NewRecorder()
	ours.ServeHTTP(first, httptest.NewRequest(http.MethodGet, "/openapi/v3/apis/apps/v1", nil))
	var hash string
	if _, err := http.ParseTime(first.Header().Get("Last-Modified")); err != nil {
		t.Errorf("Last-Modified: %v", err)
	}
	if e := first.Header().Get("Etag"); len(e) > 2 {
		hash = url.QueryEscape(e[1 : len(e)-1])
	}
	for _, path := range []string{
		pathV2, pathV3, pathV3 + "/apis/apps/v1", pathV3 + "/apis/batch/v1", pathV3 + "/version/", pathV3 + "/apis/apps/v1?hash=" + hash,
		pathV3 + "/apis/apps/v1?hash=0", // it has been another one
	} {
		for _, accept := range []string{
			"", "*/*", "application/json", "application/" + protobufV2, "application/" + protobufV2Old, "application/" + protobufV3,
			"application/" + protobufV3Old, "application/xml", "text/html, application/json;q=0.5", "application/xml, application/*;q=0.1",
		} {
			for range 2 { // what was made the first time is kept
				compare(t, library, ours, path, accept)
			}
		}
	}
	w := httptest.NewRecorder()
	ours.ServeHTTP(w, httptest.NewRequest(http.MethodGet, pathV3+"/apis/none/v1", nil))
	if w.Code != http.StatusNotFound {
		t.Errorf("a group that is not there: %d", w.Code)
	}
	known := httptest.NewRequest(http.MethodGet, pathV2, nil)
	known.Header.Set("If-None-Match", `"`+d.two.etag+`"`)
	w = httptest.NewRecorder()
	ours.ServeHTTP(w, known)
	if w.Code != http.StatusNotModified || w.Body.Len() > 0 {
		t.Errorf("a document that the client has: %d, %d bytes", w.Code, w.Body.Len())
	}
}

func compare(t *testing.T, library, ours http.Handler, path, accept string) {
	t.Helper()
	var answers []*httptest.ResponseRecorder
	for _, h := range []http.Handler{library, ours} {
		r := httptest.NewRequest(http.MethodGet, path, nil)
		if accept != "" {
			r.Header.Set("Accept", accept)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		answers = append(answers, w)
	}
	theirs, is := answers[0], answers[1]
	if theirs.Code != is.Code {
		t.Errorf("%s as %q: %d, not %d", path, accept, is.Code, theirs.Code)
		return
	}
	for _, name := range []string{"Content-Type", "Etag", "Cache-Control", "Location"} {
		if got, want := is.Header().Get(name), theirs.Header().Get(name); got != want {
			t.Errorf("%s as %q: %s %q, not %q", path, accept, name, got, want)
		}
	}
	if is.Body.String() != theirs.Body.String() {
		t.Errorf("%s as %q: %d bytes, which are not the %d of the library", path, accept, is.Body.Len(), theirs.Body.Len())
	}
}

// TestDocumentsAtOnce has many ask for what is made when somebody does.
func TestDocumentsAtOnce(t *testing.T) {
	c, two, three := someServices(t)
	d, err := Describe(c.RegisteredWebServices(), two, three)
	if err != nil {
		t.Fatal(err)
	}
	paths := mux.NewPathRecorderMux("ours")
	d.Install(paths)
	var wait sync.WaitGroup
	for i := range 16 {
		wait.Go(func() {
			r := httptest.NewRequest(http.MethodGet, []string{pathV2, pathV3 + "/apis/apps/v1"}[i%2], nil)
			if i > 7 {
				r.Header.Set("Accept", "application/"+protobufV2+", application/"+protobufV3)
			}
			w := httptest.NewRecorder()
			paths.ServeHTTP(w, r)
			if w.Code != http.StatusOK || w.Body.Len() == 0 {
				t.Errorf("%s: %d", r.URL, w.Code)
			}
		})
	}
	wait.Wait()
}
