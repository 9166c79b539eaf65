"""The pages of the shop."""

from django.contrib import admin
from django.urls import path
from orders import views

urlpatterns = [
    path("admin/", admin.site.urls),
    path("orders/", views.place),
    path("orders/<int:pk>/", views.show),
    path("totals/", views.totals),
]
