// Shows the interface's description. The token is asked for by "Authorize" and forgotten with the page.
SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#interface",
  deepLinking: true,
  persistAuthorization: false,
  validatorUrl: null,
});
