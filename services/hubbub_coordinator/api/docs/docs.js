// Shows the API's description. "Authorize" asks for the token, which is forgotten with the page.
SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#interface",
  deepLinking: true,
  persistAuthorization: false,
  validatorUrl: null,
});
