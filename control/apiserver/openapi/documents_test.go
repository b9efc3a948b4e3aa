package openapi

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/emicklei/go-restful/v3"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	apiopenapi "k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/server/routes"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/controllers/openapiv3/aggregator"
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
	definitions := Definitions(external)
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
	theirs, own := mux.NewPathRecorderMux("library"), mux.NewPathRecorderMux("ours")
	routes.OpenAPI{Config: two}.InstallV2(c, theirs)
	routes.OpenAPI{V3Config: three}.InstallV3(c, theirs)
	d := Describe(c.RegisteredWebServices(), two, three)
	d.Install(own)
	library, ours := aggregated(t, theirs), d.Complete(aggregated(t, own))
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
		pathV3 + "/apis/other/v1",
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

// aggregated is what the library's aggregator serves of a server and of another one, as its front does: it has asked
// for the index when it was started.
func aggregated(t *testing.T, of http.Handler) http.Handler {
	t.Helper()
	front := mux.NewPathRecorderMux("front")
	front.Handle(pathV2, of)
	none := genericapiserver.NewEmptyDelegate()
	all, err := aggregator.BuildAndRegisterAggregator(aggregator.NewDownloader(), none, nil, nil, front)
	if err != nil {
		t.Fatal(err)
	}
	other := mux.NewPathRecorderMux("other")
	other.Handle(pathV3, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"paths":{"apis/other/v1":{"serverRelativeURL":"/openapi/v3/apis/other/v1?hash=1"}}}`))
	}))
	other.Handle(pathV3+"/apis/other/v1", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{}`))
	}))
	for name, h := range map[string]http.Handler{"of": of, "other": other} {
		all.AddUpdateAPIService(h, &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: name}})
		if err := all.UpdateAPIServiceSpec(name); err != nil {
			t.Fatal(err)
		}
	}
	return front
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

// TestDocumentsLate has none be made for the aggregator and the server itself, which ask for the index all the time.
func TestDocumentsLate(t *testing.T) {
	c, two, three := someServices(t)
	asked := false
	definitions := three.GetDefinitions
	three.Definitions, three.GetDefinitions = nil, func(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
		asked = true
		return definitions(ref)
	}
	d := Describe(c.RegisteredWebServices(), two, three)
	own := mux.NewPathRecorderMux("ours")
	d.Install(own)
	all := d.Complete(aggregated(t, own))
	self := httptest.NewRequest(http.MethodGet, pathV3, nil)
	self = self.WithContext(request.WithUser(t.Context(), &user.DefaultInfo{Name: user.APIServerUser}))
	all.ServeHTTP(httptest.NewRecorder(), self)
	if asked {
		t.Error("documents are made that nobody has asked for")
	}
	w := httptest.NewRecorder()
	all.ServeHTTP(w, httptest.NewRequest(http.MethodGet, pathV3, nil))
	if !asked || w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "/openapi/v3/apis/apps/v1?hash=") ||
		strings.Contains(w.Body.String(), `hash="`) {
		t.Errorf("the index: %d, %s", w.Code, w.Body)
	}
}

// TestDocumentsOfOthers has who serves a group in place of this server describe it.
func TestDocumentsOfOthers(t *testing.T) {
	c, two, three := someServices(t)
	d := Describe(c.RegisteredWebServices(), two, three)
	all := d.Complete(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case pathV3:
			_, _ = w.Write([]byte(`{"paths":{"apis/batch/v1":{"serverRelativeURL":"/openapi/v3/apis/batch/v1?hash=theirs"}}}`))
		case pathV3 + "/apis/batch/v1":
			_, _ = w.Write([]byte("theirs"))
		default:
			http.NotFound(w, r)
		}
	}))
	for path, want := range map[string]string{
		pathV3: "hash=theirs", pathV3 + "/apis/batch/v1": "theirs", pathV3 + "/apis/apps/v1": "io.k8s.api.apps.v1.Deployment",
	} {
		w := httptest.NewRecorder()
		all.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: %d, %.200s", path, w.Code, w.Body)
		}
	}
}

// TestDocumentsAtOnce has many ask for what is made when somebody does.
func TestDocumentsAtOnce(t *testing.T) {
	c, two, three := someServices(t)
	d := Describe(c.RegisteredWebServices(), two, three)
	own := mux.NewPathRecorderMux("ours")
	d.Install(own)
	paths := d.Complete(aggregated(t, own))
	var wait sync.WaitGroup
	for i := range 16 {
		wait.Go(func() {
			r := httptest.NewRequest(http.MethodGet, []string{pathV2, pathV3 + "/apis/apps/v1", pathV3}[i%3], nil)
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
